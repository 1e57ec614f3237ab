{{/* gateway.yaml: the settings of the values, with what other values imply. */}}
{{- define "rcp-gateway.settings" -}}
{{- $settings := deepCopy (.Values.settings | default dict) -}}
{{- $auth := $settings.auth | default dict -}}
{{- if not (or $auth.mode $auth.allow_anonymous) -}}
{{- $_ := set $auth "mode" (list "keys") -}}
{{- end -}}
{{- if and $auth.mode (not (has "none" $auth.mode)) (not $auth.tenants_file) -}}
{{- $_ := set $auth "tenants_file" "/run/secrets/rcp-gateway/tenants.yaml" -}}
{{- end -}}
{{- $_ := set $settings "auth" $auth -}}
{{- if .Values.tls.existingSecret -}}
{{- $folder := "/run/secrets/rcp-gateway-tls" -}}
{{- $tls := dict "cert_file" (printf "%s/tls.crt" $folder) "key_file" (printf "%s/tls.key" $folder) -}}
{{- with .Values.tls.clientCaKey -}}
{{- $_ := set $tls "client_ca_file" (printf "%s/%s" $folder .) -}}
{{- end -}}
{{- $_ := set $settings "server" (merge (dict "tls" $tls) ($settings.server | default dict)) -}}
{{- end -}}
{{- if .Values.redis.enabled -}}
{{- $url := printf "redis://%s-redis:6379/0" (.Release.Name | trunc 57 | trimSuffix "-") -}}
{{- $_ := set $settings "state" (merge (dict "url" $url) ($settings.state | default dict)) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The settings that are read only at start: a change of one of them must restart the pods, any other must not. */}}
{{- define "rcp-gateway.startSettings" -}}
{{- $settings := fromYaml (include "rcp-gateway.settings" .) -}}
{{- $kept := pick $settings "state" "log" "auth" "jwt" "screen" "traces" -}}
{{- $atStart := dict
  "server" (list "host" "port" "workers" "worker_timeout_seconds" "keep_alive_seconds" "handshake" "max_line_bytes" "trusted_proxies" "allowed_hosts" "cors_origins" "tls")
  "mcp" (list "enabled" "fetch_ttl_seconds" "max_kept_hits")
  "cache" (list "shared")
  "metrics" (list "port") -}}
{{- range $section, $keys := $atStart -}}
{{- $written := get $settings $section | default dict -}}
{{- range $keys -}}
{{- if hasKey $written . -}}
{{- $_ := set $kept (printf "%s.%s" $section .) (get $written .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $kept -}}
{{- end -}}

{{- define "rcp-gateway.port" -}}
{{- ((.Values.settings | default dict).server | default dict).port | default 8080 | int -}}
{{- end -}}

{{/* Empty without a port of its own for /metrics. */}}
{{- define "rcp-gateway.metricsPort" -}}
{{- with ((.Values.settings | default dict).metrics | default dict).port -}}{{ int . }}{{- end -}}
{{- end -}}

{{/* `https` or `http`: the scheme, and the name of the port. */}}
{{- define "rcp-gateway.scheme" -}}
{{- ternary "https" "http" (not (empty ((fromYaml (include "rcp-gateway.settings" .)).server | default dict).tls)) -}}
{{- end -}}

{{/* What the kubelet does to see whether the gateway lives (path /livez) or is ready (/readyz). */}}
{{- define "rcp-gateway.probe" -}}
{{- $scheme := include "rcp-gateway.scheme" .root -}}
{{- $tls := ((fromYaml (include "rcp-gateway.settings" .root)).server | default dict).tls | default dict -}}
{{- if $tls.client_ca_file -}}
tcpSocket: {port: {{ $scheme }}}
{{- else -}}
httpGet: {path: {{ .path }}, port: {{ $scheme }}{{ if eq $scheme "https" }}, scheme: HTTPS{{ end }}}
{{- end -}}
{{- end -}}

{{/* drain + grace of the gateway, rounded up. */}}
{{- define "rcp-gateway.stopSeconds" -}}
{{- $server := (.Values.settings | default dict).server | default dict -}}
{{- $drain := hasKey $server "drain_seconds" | ternary $server.drain_seconds 10 -}}
{{- $grace := hasKey $server "grace_seconds" | ternary $server.grace_seconds 20 -}}
{{- addf $drain $grace | ceil | int -}}
{{- end -}}

{{- define "rcp-gateway.openshift" -}}
{{- if kindIs "bool" .Values.global.openshift | ternary .Values.global.openshift (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}true{{- end -}}
{{- end -}}
