import type { SystemState } from "../../api/platform";

// Whether the platform starts with the machine. The service is installed on the machine itself, as root.
export function ServiceCard({ service }: { service: SystemState["service"] }) {
  return (
    <section className="card" aria-label="Service">
      <h2>Service</h2>
      <div className="card-body stack">
        {service ? (
          <p>
            The platform is the service <code>{service.unit}</code> of the user <code>{service.user}</code>.{" "}
            {service.starts_with_machine ? (
              "It starts with the machine, and again if it ends."
            ) : (
              <>
                It does not start with the machine: run <code>sudo systemctl enable {service.unit}</code>.
              </>
            )}
          </p>
        ) : (
          <p>
            The platform is no service, so it does not start with the machine. Run{" "}
            <code>sudo portside service install</code> there to change that.
          </p>
        )}
      </div>
    </section>
  );
}
