"""Names of environment variables that a secret cannot have (contract: section 7.3).

LANGSMITH_API_KEY and LANGSMITH_ENDPOINT may be set, as on every self-hosted installation: traces then go where the
user says.
"""

_SET_BY_PLATFORM = frozenset(
    {
        "DATABASE_URI",
        "DD_TRACE_PSYCOPG_ENABLED",
        "DD_TRACE_REDIS_ENABLED",
        "LANGCHAIN_API_KEY",
        "LANGCHAIN_CALLBACKS_BACKGROUND",
        "LANGCHAIN_ENDPOINT",
        "LANGCHAIN_PROJECT",
        "LANGCHAIN_TRACING_V2",
        "LANGGRAPH_AUTH_TYPE",
        "LANGGRAPH_CLOUD_LICENSE_KEY",
        "LANGGRAPH_GIT_REPO_PATH",
        "LANGSMITH_AUTH_ENDPOINT",
        "LANGSMITH_AUTH_VERIFY_TENANT_ID",
        "LANGSMITH_CONTROL_PLANE_API_KEY",
        "LANGSMITH_DEPLOYMENT_NAME",
        "LANGSMITH_HOST_PROJECT_ID",
        "LANGSMITH_HOST_PROJECT_NAME",
        "LANGSMITH_HOST_REVISION_ID",
        "LANGSMITH_LANGGRAPH_GIT_REF",
        "LANGSMITH_LANGGRAPH_GIT_REF_SHA",
        "LANGSMITH_LANGGRAPH_GIT_REPO",
        "LANGSMITH_PROJECT",
        "LANGSMITH_TENANT_ID",
        "LANGSMITH_TRACING_V2",
        "LOG_DICT_TRACEBACKS",
        "LOG_JSON",
        "LSD_DD_API_KEY",
        "LSD_DD_ENDPOINT",
        "LSD_DEPLOYMENT_TYPE",
        "LSD_ENV",
        "MOUNT_PREFIX",
        "PATH",
        "PORT",
        "POSTGRES_PASSWORD",
        "POSTGRES_URI",
        "REDIS_URI",
    }
)

RESERVED = _SET_BY_PLATFORM | {
    "GRAPH_" + name.removeprefix("LANGGRAPH_") for name in _SET_BY_PLATFORM if name.startswith("LANGGRAPH_")
}

# A database or cache of the user's own. On a machine they would be passed on and not used, so they are refused there.
ON_CLUSTERS = frozenset({"POSTGRES_URI_CUSTOM", "REDIS_URI_CUSTOM"})
