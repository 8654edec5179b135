# The agent server, to build images of agents from:
#
#   docker build -f docker/agent.Dockerfile -t portside-agent .
#
# A project's own Dockerfile:
#
#   FROM portside-agent
#   COPY --chown=0:0 . /app
#   RUN pip install --no-cache-dir -r /app/requirements.txt
#
# It listens on all addresses of the container, so without auth.path in the project's configuration and without a platform
# it starts only where GRAPH_AUTH_TYPE=noop says that everybody is to be let in who reaches the published port.
ARG PYTHON=python:3.13-slim
FROM ${PYTHON}
COPY pyproject.toml README.md LICENSE CHANGELOG.md /src/
COPY src /src/src
RUN pip install --no-cache-dir /src && rm -rf /src
ENV GRAPH_SERVER_HOST=0.0.0.0 PORT=8000 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
EXPOSE 8000
USER 65534:65534
CMD ["portside", "serve", "--config", "/app/langgraph.json"]
