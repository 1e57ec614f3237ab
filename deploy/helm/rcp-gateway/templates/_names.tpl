{{- define "rcp-gateway.name" -}}
{{- if contains "rcp-gateway" .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-rcp-gateway" .Release.Name | trunc 63 | trimSuffix "-" -}}
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

{{- define "rcp-gateway.tenants" -}}
{{- if .Values.tenants.existingSecret -}}
{{- .Values.tenants.existingSecret -}}
{{- else if .Values.tenants.content -}}
{{- printf "%s-tenants" (include "rcp-gateway.name" .) -}}
{{- end -}}
{{- end -}}
