import { Link, Outlet } from "@tanstack/react-router";
import { useMay } from "../../shell/session";

export function SystemPage() {
  const mayManage = useMay("organization:manage");

  return (
    <div className="page">
      <h1>System</h1>
      <nav className="tabs" aria-label="Parts of the page">
        <Link to="/system" activeOptions={{ exact: true, includeSearch: false }}>
          Health
        </Link>
        <Link to="/system/git">Git hosts</Link>
        {mayManage && <Link to="/system/backups">Backups</Link>}
        {mayManage && <Link to="/system/upgrade">Upgrade</Link>}
        {mayManage && <Link to="/system/disk">Disk</Link>}
        {mayManage && <Link to="/system/doctor">Doctor</Link>}
        {mayManage && <Link to="/system/settings">Settings</Link>}
      </nav>
      <Outlet />
    </div>
  );
}
