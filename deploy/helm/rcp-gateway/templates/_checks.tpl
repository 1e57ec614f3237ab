{{/* Values that the schema accepts and with which no gateway could start, or not as intended. */}}
{{- define "rcp-gateway.check" -}}
{{- $settings := fromYaml (include "rcp-gateway.settings" .) -}}
{{- $auth := $settings.auth -}}
{{- $given := .Values.settings | default dict -}}
{{- $keyed := and $auth.mode (not (has "none" $auth.mode)) -}}
{{- if and (not $keyed) (not $auth.allow_anonymous) -}}
{{- fail "settings.auth.mode is none: the pods are reachable from others, so set auth.mode to [keys], or auth.allow_anonymous: true" -}}
{{- end -}}
{{- if and $auth.mode (has "none" $auth.mode) (gt (len $auth.mode) 1) -}}
{{- fail "settings.auth.mode: none cannot be combined with another mode" -}}
{{- end -}}
{{- if and .Values.tenants.existingSecret .Values.tenants.content -}}
{{- fail "tenants: set existingSecret or content, not both" -}}
{{- end -}}
{{- if and (not $keyed) (or .Values.tenants.existingSecret .Values.tenants.content $auth.tenants_file) -}}
{{- fail "tenants are not used while settings.auth.mode is none; set auth.mode to [keys]" -}}
{{- end -}}
{{- if has "jwt" ($auth.mode | default list) -}}
{{- range list "issuer" "audience" "jwks_url" -}}
{{- if not (get ($settings.jwt | default dict) .) -}}
{{- fail (printf "settings.jwt.%s is missing: settings.auth.mode contains jwt" .) -}}
{{- end -}}
{{- end -}}
{{- if not (or .Values.tenants.existingSecret .Values.tenants.content (dig "auth" "tenants_file" "" $given)) -}}
{{- fail "settings.auth.mode contains jwt: name the tenants in tenants.existingSecret or tenants.content" -}}
{{- end -}}
{{- end -}}
{{- if .Values.tls.existingSecret -}}
{{- if dig "server" "tls" "" $given -}}
{{- fail "set tls.existingSecret or settings.server.tls, not both" -}}
{{- end -}}
{{- else if .Values.tls.clientCaKey -}}
{{- fail "tls.clientCaKey needs tls.existingSecret" -}}
{{- end -}}
{{- $stores := list (ternary "redis.enabled" "" .Values.redis.enabled) (ternary "state.urlSecret" "" (not (empty .Values.state.urlSecret.name))) (ternary "settings.state.url" "" (not (empty (dig "state" "url" "" $given)))) | compact -}}
{{- if gt (len $stores) 1 -}}
{{- fail (printf "set one of %s: each names the Redis of the shared state" (join " and " $stores)) -}}
{{- end -}}
{{- $server := $settings.server | default dict -}}
{{- if hasKey $server "port" -}}
{{- if not $server.port -}}
{{- fail "settings.server.port: 0 would pick another port in each pod" -}}
{{- end -}}
{{- end -}}
{{- if eq (include "rcp-gateway.port" .) (include "rcp-gateway.metricsPort" .) -}}
{{- fail "settings.metrics.port must differ from settings.server.port" -}}
{{- end -}}
{{- if and (eq (default "" $server.handshake) "required") (gt (int (default 1 $server.workers)) 1) (empty $stores) -}}
{{- fail "settings.server.handshake 'required' needs one worker or a shared state: set redis.enabled or state.urlSecret" -}}
{{- end -}}
{{- with .Values.terminationGracePeriodSeconds -}}
{{- if le (int .) (include "rcp-gateway.stopSeconds" $ | int) -}}
{{- fail (printf "terminationGracePeriodSeconds %d must be more than settings.server.drain_seconds + grace_seconds (%s)" (int .) (include "rcp-gateway.stopSeconds" $)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" -}}
{{- end -}}
{{- $ids := list -}}
{{- range $place, $engine := .Values.registry.engines -}}
{{- if not (or $engine.url $engine.command) -}}
{{- fail (printf "registry.engines[%d] (%s) needs 'url' or 'command'" $place $engine.id) -}}
{{- end -}}
{{- if has $engine.id $ids -}}
{{- fail (printf "registry.engines[%d]: '%s' is already the id of another engine" $place $engine.id) -}}
{{- end -}}
{{- $ids = append $ids $engine.id -}}
{{- end -}}
{{- if not $ids -}}
{{- fail "registry.engines is empty: a gateway without engines never becomes ready" -}}
{{- end -}}
{{- end -}}
