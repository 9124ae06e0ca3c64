# A demo site: an IoTDB data folder behind sshd, nothing of Tidemark on it.
FROM debian:bookworm-slim

RUN apt-get update \
 && apt-get install -y --no-install-recommends openssh-server python3-minimal \
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
 && useradd --create-home --shell /bin/sh edge \
 && mkdir -p /run/sshd /data/iotdb \
 && chown edge:edge /data/iotdb

COPY docker/sshd_config /etc/ssh/sshd_config
COPY docker/site-entrypoint /usr/local/bin/site-entrypoint
COPY --chown=edge:edge tests/data/iotdb /seed

EXPOSE 22
ENTRYPOINT ["/usr/local/bin/site-entrypoint"]
