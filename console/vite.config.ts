import { defineConfig } from "vite";

// In development the pages come from Vite, and everything else from a platform on this machine.
const platform = process.env.PORTSIDE_URL ?? "http://127.0.0.1:8700";

export default defineConfig({
  base: "/console/",
  build: {
    target: "es2023",
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    // Scripts that are data: addresses would need a weaker content security policy.
    assetsInlineLimit: 0,
    emptyOutDir: true,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "^/(?!console(?:/|$))": { target: platform, changeOrigin: false } } },
});
