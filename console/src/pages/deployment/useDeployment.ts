import { useApi } from "../../api/queries";

export function useDeployment(deploymentId: string) {
  return useApi("GET /v2/deployments/{deployment_id}", { path: { deployment_id: deploymentId } }, { everyMs: 3_000 });
}
