import { useMutation } from "@tanstack/react-query";
import { ApiError } from "../api/client";
import { saveFile } from "./Json";

interface Download {
  read: () => Promise<Response>;
  fileName: string;
}

// Saves what a request answers as a file. A link would do, if browsers sent the header of the workspace with it.
export function useDownload() {
  return useMutation<void, ApiError, Download>({
    mutationFn: async ({ read, fileName }) => saveFile(await readBody(await read()), fileName),
  });
}

async function readBody(response: Response): Promise<Blob> {
  try {
    return await response.blob();
  } catch {
    throw new ApiError(0, "The connection was lost before the whole file was here.", [], null);
  }
}
