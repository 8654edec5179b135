import { Link } from "@tanstack/react-router";
import { useMay } from "../../shell/session";
import { Icon } from "../../ui/Icon";

/** The way to the form, for those who may create deployments. */
export function NewDeploymentLink() {
  if (!useMay("deployments:create")) return null;

  return (
    <Link to="/deployments/new" className="button main">
      <Icon name="plus" />
      New deployment
    </Link>
  );
}
