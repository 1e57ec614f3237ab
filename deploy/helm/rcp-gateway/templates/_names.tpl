{{- define "rcp-gateway.name" -}}
{{- if contains "rcp-gateway" .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-rcp-gateway" (.Release.Name | trunc 41 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "rcp-gateway.selector" -}}
app.kubernetes.io/name: rcp-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rcp-gateway.labels" -}}
{{ include "rcp-gateway.selector" . }}
app.kubernetes.io/part-of: rcp
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Whether a Secret with the tenants is mounted: unless nobody needs a key, or the settings name another file. */}}
{{- define "rcp-gateway.tenants" -}}
{{- $auth := (fromYaml (include "rcp-gateway.settings" .)).auth -}}
{{- if .Values.tenants.existingSecret -}}
{{- .Values.tenants.existingSecret -}}
{{- else if or .Values.tenants.content (eq ($auth.tenants_file | default "") "/run/secrets/rcp-gateway/tenants.yaml") -}}
{{- printf "%s-tenants" (include "rcp-gateway.name" .) -}}
{{- end -}}
{{- end -}}

{{/* The Secret of the generated key, if there are no other tenants. */}}
{{- define "rcp-gateway.keySecret" -}}
{{- if and (include "rcp-gateway.tenants" .) (not .Values.tenants.existingSecret) (not .Values.tenants.content) -}}
{{- printf "%s-key" (include "rcp-gateway.name" .) -}}
{{- end -}}
{{- end -}}
