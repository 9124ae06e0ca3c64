# Airflow, Spark and ./tidemark in one image: the versions of requirements.txt, by digest, and nothing else.
FROM python:3.11-slim-bookworm

RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless openssh-client procps tini \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/tidemark
COPY requirements.txt ./
# --no-deps: the lock is complete, and the Spark provider's pyspark-client must stay out (docs/decisions).
RUN python -m pip install --no-cache-dir --no-deps --require-hashes -r requirements.txt

COPY sql ./sql
COPY plugins ./plugins
COPY dags ./dags
COPY spark_jobs ./spark_jobs
COPY docker/entrypoint docker/healthy ./docker/
COPY tidemark ./
RUN python -m compileall -q plugins dags spark_jobs \
 && mkdir -p /opt/airflow/logs /srv/tidemark /var/tidemark \
 && chmod 0777 /opt/airflow /opt/airflow/logs /srv/tidemark /var/tidemark \
 && chmod g+w /etc/passwd

ENV AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/tidemark/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/tidemark/plugins \
    PYTHONPATH=/opt/tidemark/plugins \
    PYSPARK_PYTHON=/usr/local/bin/python \
    HOME=/var/tidemark

ENTRYPOINT ["tini", "-g", "--", "/opt/tidemark/docker/entrypoint"]
CMD ["airflow", "version"]
