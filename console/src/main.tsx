import "./preferences";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/pages.css";
import "./styles/agents.css";
import "./styles/operate.css";
import "./styles/traces.css";
import "./styles/figures.css";
import "./styles/administer.css";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api/client";
import { router } from "./router";

const RETRIES = 2;

const cache = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      // A refused request would be refused again; only lost connections and failures of the platform are worth a retry.
      retry: (count, error) =>
        !(error instanceof ApiError && error.status >= 400 && error.status < 500) && count < RETRIES,
      networkMode: "always",
    },
    mutations: { networkMode: "always" },
  },
});

const element = document.getElementById("root");

if (element) {
  createRoot(element).render(
    <StrictMode>
      <QueryClientProvider client={cache}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </StrictMode>,
  );
}
