{{/* The folder of an entry of the Secret in the gateway. */}}
{{- define "revelator.secretFile" -}}
/etc/revelator/secrets/{{ . }}
{{- end -}}

{{/* The settings of a store's address, as JSON: (list $ NAME PORT) */}}
{{- define "revelator.storeSettings" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $values := get $root.Values $name -}}
{{- $made := dict -}}
{{- if eq $values.mode "bundled" -}}
{{- $_ := set $made (print $name "_url") (printf "http://%s-%s:%s" (include "revelator.fullname" $root) $name (index . 2)) -}}
{{- else if eq $values.mode "external" -}}
{{- $_ := set $made (print $name "_url") (required (printf "%s.url: mode external needs the server's URL" $name) $values.url) -}}
{{- end -}}
{{- $made | toJson -}}
{{- end -}}

{{/* settings.retrieval, as far as the chart writes it. */}}
{{- define "revelator.retrieval" -}}
{{- $made := dict -}}
{{- $made = merge $made (include "revelator.storeSettings" (list . "elasticsearch" "9200") | fromJson) -}}
{{- $made = merge $made (include "revelator.storeSettings" (list . "qdrant" "6333") | fromJson) -}}
{{- if eq .Values.qdrant.mode "bundled" -}}{{- $_ := set $made "qdrant_grpc_port" 6334 -}}{{- end -}}
{{- if ne .Values.elasticsearch.mode "embedded" -}}
{{- if include "revelator.has" (list . "elasticsearch-api-key") -}}
{{- $_ := set $made "elasticsearch_key_file" (include "revelator.secretFile" "elasticsearch-api-key") -}}
{{- else if include "revelator.has" (list . "elasticsearch-password") -}}
{{- $_ := set $made "elasticsearch_url" (replace "://" (printf "://%s@" .Values.elasticsearch.user) $made.elasticsearch_url) -}}
{{- $_ := set $made "elasticsearch_key_file" (include "revelator.secretFile" "elasticsearch-password") -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.qdrant.mode "embedded") (include "revelator.has" (list . "qdrant-key")) -}}
{{- $_ := set $made "qdrant_key_file" (include "revelator.secretFile" "qdrant-key") -}}
{{- end -}}
{{- $made | toJson -}}
{{- end -}}

{{/* One pool of workers, with its defaults: (list $ NAME) */}}
{{- define "revelator.pool" -}}
{{- $root := index . 0 -}}
{{- $pool := mergeOverwrite (deepCopy $root.Values.workerDefaults) (deepCopy (get $root.Values.workers (index . 1))) -}}
{{- $_ := required (printf "workers.%s.model: name the model that these workers serve" (index . 1)) $pool.model -}}
{{- $pool | toJson -}}
{{- end -}}

{{/* settings.engines: one engine for each pool. */}}
{{- define "revelator.engines" -}}
{{- $root := . -}}
{{- $made := dict -}}
{{- range $name, $_ := .Values.workers -}}
{{- $pool := include "revelator.pool" (list $root $name) | fromJson -}}
{{- $url := printf "http://%s-worker-%s:8000/v1" (include "revelator.fullname" $root) $name -}}
{{- $engine := dict "kind" "vllm" "urls" (list $url) "model" $pool.model "resolve" true -}}
{{- if include "revelator.has" (list $root "worker-key") -}}
{{- $_ := set $engine "key_file" (include "revelator.secretFile" "worker-key") -}}
{{- end -}}
{{- $_ := set $made $name (mergeOverwrite $engine (deepCopy $pool.engine)) -}}
{{- end -}}
{{- $made | toJson -}}
{{- end -}}

{{/* All settings of the gateway, as JSON: what the chart knows, and `settings` over it. */}}
{{- define "revelator.settings" -}}
{{- $server := dict "host" "0.0.0.0" "port" 8000 "drain_s" (include "revelator.drainSeconds" . | int) -}}
{{- if include "revelator.has" (list . "gateway-keys") -}}
{{- $_ := set $server "keys_file" (include "revelator.secretFile" "gateway-keys") -}}
{{- end -}}
{{- if include "revelator.has" (list . "tenants") -}}
{{- $_ := set $server "tenants_file" (include "revelator.secretFile" "tenants") -}}
{{- end -}}
{{- $made := dict "data_dir" "/data" "server" $server -}}
{{- $authorities := list -}}
{{- range $name := list "elasticsearch" "qdrant" -}}
{{- $values := get $.Values $name -}}
{{- if and (eq $values.mode "external") $values.caSecret -}}
{{- $authorities = append $authorities (printf "/etc/revelator/ca/%s/ca.crt" $name) -}}
{{- end -}}
{{- end -}}
{{- if $authorities -}}{{- $_ := set $made "ca_files" $authorities -}}{{- end -}}
{{- with include "revelator.retrieval" . | fromJson -}}
{{- $_ := set $made "retrieval" . -}}
{{- end -}}
{{- with include "revelator.engines" . | fromJson -}}
{{- $_ := set $made "engines" . -}}
{{- end -}}
{{- mergeOverwrite $made (deepCopy .Values.settings) | toJson -}}
{{- end -}}

{{/* What cannot work is refused here, with what to do. */}}
{{- define "revelator.check" -}}
{{- $settings := include "revelator.settings" . | fromJson -}}
{{- $issuer := get ($settings.server.oidc | default dict) "issuer" -}}
{{- if not (or $settings.server.keys_file $settings.server.tenants_file $issuer $settings.server.insecure) -}}
{{- fail "secrets: the gateway needs API keys; set secrets.existing to a Secret with the entry gateway-keys or tenants, or secrets.values.gateway-keys, or settings.server.oidc to take tokens of an issuer, or settings.server.insecure to let anyone ask" -}}
{{- end -}}
{{- if include "revelator.embedded" . -}}
{{- if or (gt (int .Values.gateway.replicas) 1) .Values.gateway.autoscaling.enabled -}}
{{- fail "gateway: several replicas need both stores on servers; set elasticsearch.mode and qdrant.mode to bundled or external, or gateway.replicas to 1 without autoscaling" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.workers (not (hasKey $settings.engines "default")) -}}
{{- fail "workers: no pool is called default, which is the engine of every role that names no other; call one so, or add settings.engines.default" -}}
{{- end -}}
{{- end -}}
