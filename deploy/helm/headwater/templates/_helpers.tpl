{{- define "headwater.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "headwater.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "headwater.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "headwater.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "headwater.selector" -}}
app.kubernetes.io/name: {{ include "headwater.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "headwater.labels" -}}
{{ include "headwater.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "headwater.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}
{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "headwater.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "headwater.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- /* A variable from a key of the secret: name, key, and whether it may be missing. */ -}}
{{- define "headwater.secret" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .root.Values.secrets.existingSecret }}
      key: {{ .key }}
      {{- if .optional }}
      optional: true
      {{- end }}
{{- end }}

{{- /* What every process needs: names, and the way to Kafka. */ -}}
{{- define "headwater.env" -}}
- name: HEADWATER_KAFKA
  value: {{ required "kafka.brokers: expected brokers as host:port" .Values.kafka.brokers | quote }}
- name: HEADWATER_PARTITIONS
  value: {{ .Values.kafka.partitions | quote }}
- name: HEADWATER_REPLICATION
  value: {{ .Values.kafka.replication | quote }}
{{- with .Values.project }}
- name: HEADWATER_PROJECT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.topicPrefix }}
- name: HEADWATER_TOPIC_PREFIX
  value: {{ . | quote }}
{{- end }}
{{- with .Values.postgresSchema }}
- name: HEADWATER_POSTGRES_SCHEMA
  value: {{ . | quote }}
{{- end }}
{{- with .Values.kafka.tls }}
{{- if .enabled }}
- name: HEADWATER_KAFKA_TLS
  value: "true"
{{- if not .checkHostname }}
- name: HEADWATER_KAFKA_TLS_CHECK_HOSTNAME
  value: "false"
{{- end }}
{{- if .existingSecret }}
- name: HEADWATER_KAFKA_TLS_CA
  value: /etc/headwater/kafka/ca.crt
{{- if .clientCertificate }}
- name: HEADWATER_KAFKA_TLS_CERTIFICATE
  value: /etc/headwater/kafka/tls.crt
- name: HEADWATER_KAFKA_TLS_KEY
  value: /etc/headwater/kafka/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.kafka.sasl.mechanism }}
- name: HEADWATER_KAFKA_SASL
  value: {{ .Values.kafka.sasl.mechanism }}
- name: HEADWATER_KAFKA_USER
  value: {{ .Values.kafka.sasl.user | quote }}
{{ include "headwater.secret" (dict "root" . "name" "HEADWATER_KAFKA_PASSWORD" "key" .Values.secrets.keys.kafkaPassword) }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* Of workers and projectors: where they answer probes and monitors. */ -}}
{{- define "headwater.monitored" -}}
- name: HEADWATER_METRICS_ADDRESS
  value: {{ printf "0.0.0.0:%v" .Values.metrics.port | quote }}
{{- end }}

{{- /* Their name, which their next pod keeps: it takes the partitions at once. */ -}}
{{- define "headwater.member" -}}
- name: HEADWATER_MEMBER
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end }}

{{- define "headwater.blobs" -}}
{{- if .Values.gateway.blobs.url }}
- name: HEADWATER_BLOBS
  value: {{ .Values.gateway.blobs.url | quote }}
{{- end }}
{{- end }}

{{- define "headwater.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "headwater.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Fields of a pod, besides its containers and volumes. */ -}}
{{- define "headwater.pod" -}}
serviceAccountName: {{ include "headwater.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "headwater.podSecurity" . | nindent 2 }}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .root.Values.spread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "headwater.selector" . | nindent 8 }}
{{- end }}
{{- end }}

{{- define "headwater.podMetadata" -}}
labels:
  {{- include "headwater.labels" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "headwater.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: state, mountPath: /var/lib/headwater/.headwater/state}
{{- include "headwater.certificateMounts" . }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "headwater.certificateMounts" -}}
{{- if and .Values.kafka.tls.enabled .Values.kafka.tls.existingSecret }}
- {name: kafka-tls, mountPath: /etc/headwater/kafka, readOnly: true}
{{- end }}
{{- if .Values.postgres.tls.existingSecret }}
- {name: postgres-tls, mountPath: /etc/headwater/postgres, readOnly: true}
{{- end }}
{{- end }}

{{- define "headwater.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if and .Values.kafka.tls.enabled .Values.kafka.tls.existingSecret }}
- name: kafka-tls
  secret:
    secretName: {{ .Values.kafka.tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- if .Values.postgres.tls.existingSecret }}
- name: postgres-tls
  secret:
    secretName: {{ .Values.postgres.tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "headwater.blobsMount" -}}
{{- if .Values.gateway.blobs.existingClaim }}
- {name: blobs, mountPath: /var/lib/headwater/.headwater/blobs}
{{- end }}
{{- end }}

{{- define "headwater.blobsVolume" -}}
{{- with .Values.gateway.blobs.existingClaim }}
- name: blobs
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- end }}

{{- define "headwater.probes" -}}
startupProbe:
  httpGet: {path: /health/live, port: {{ . }}}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /health/live, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health/ready, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{- define "headwater.state" -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata:
    name: state
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end }}
