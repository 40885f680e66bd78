{{- define "duobus.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "duobus.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else if contains (include "duobus.name" .) .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "duobus.name" .) | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "duobus.selector" -}}
app.kubernetes.io/name: {{ include "duobus.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "duobus.labels" -}}
{{ include "duobus.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "duobus.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "duobus.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* The service that gives each server a name of its own. */}}
{{- define "duobus.headless" -}}
{{ include "duobus.fullname" . }}-servers
{{- end }}

{{- /* The secret with Config.json, or nothing. */}}
{{- define "duobus.configSecret" -}}
{{- if .Values.existingConfigSecret }}
{{- .Values.existingConfigSecret }}
{{- else if .Values.config }}
{{- printf "%s-config" (include "duobus.fullname" .) }}
{{- end }}
{{- end }}

{{- /* What values have to say together. */}}
{{- define "duobus.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.cluster.enabled) }}
{{- fail "replicas: several servers need cluster.enabled and cluster.url, a catalog in PostgreSQL that all of them share" }}
{{- end }}
{{- if and .Values.cluster.enabled (not .Values.cluster.url) }}
{{- fail "cluster.url: give the catalog in PostgreSQL, as in postgresql://duobus@postgres/duobus" }}
{{- end }}
{{- if and .Values.cluster.caKey (not (and .Values.cluster.enabled .Values.tls.existingSecret)) }}
{{- fail "cluster.caKey: needs cluster.enabled and tls.existingSecret" }}
{{- end }}
{{- if and .Values.config .Values.existingConfigSecret }}
{{- fail "config and existingConfigSecret exclude each other" }}
{{- end }}
{{- end }}
