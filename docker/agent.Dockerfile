# The agent server, as a base for images of agents:
#
#   docker build -f docker/agent.Dockerfile -t portside-agent .
#
# A project's own Dockerfile:
#
#   FROM portside-agent
#   COPY --chown=0:0 . /app
#   RUN pip install --no-cache-dir -r /app/requirements.txt
#
# It listens on all addresses of the container. Without auth.path in the project's configuration and without a platform it
# starts only with GRAPH_AUTH_TYPE=noop, which lets everybody in who reaches the published port.
ARG PYTHON=python:3.13-slim
FROM ${PYTHON} AS platform
# Shown by /info next to the version: --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=
COPY pyproject.toml README.md LICENSE CHANGELOG.md /src/
COPY src /src/src
COPY examples /src/examples
# The platform packs the wheel that deployments get: like them, the image contains only the agent server.
RUN if [ -n "$COMMIT" ]; then echo "$COMMIT" > /src/src/portside/commit.txt; fi \
 && pip install --no-cache-dir /src \
 && python -c "from pathlib import Path; from portside.dataplane.builds.wheel import pack_wheel; pack_wheel(Path('/wheel'))"

FROM ${PYTHON}
COPY --from=platform /wheel /wheel
RUN pip install --no-cache-dir /wheel/*.whl && rm -rf /wheel
ENV GRAPH_SERVER_HOST=0.0.0.0 PORT=8000 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
EXPOSE 8000
USER 65534:65534
CMD ["portside", "serve", "--config", "/app/langgraph.json"]
