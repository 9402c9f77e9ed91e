# Headwater's own parts: gateway, worker, projector. Kafka and Postgres are images of their own.
FROM python:3.13.14-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6 AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/headwater
ENV PATH=/opt/headwater/bin:$PATH

# The lock alone first: this layer is built anew only when a package changes.
COPY requirements.txt /src/
RUN pip install --require-hashes --only-binary :all: -r /src/requirements.txt

COPY pyproject.toml README.md /src/
COPY src /src/src
COPY schemas /src/schemas
COPY processors /src/processors
COPY streams /src/streams
COPY projections /src/projections
COPY gateway /src/gateway
RUN pip install --no-deps /src


FROM python:3.13.14-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6

# A number, so that an orchestrator can see that it is not root's.
RUN useradd --uid 10001 --create-home --home-dir /var/lib/headwater headwater
COPY --from=build /opt/headwater /opt/headwater
ENV PATH=/opt/headwater/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/headwater
# Where a volume may lie; its owner is that of the folder that it covers.
RUN mkdir .headwater

EXPOSE 8080
ENTRYPOINT ["headwater"]
CMD ["serve"]
