{{/* Ports of all servers that the settings name and this chart does not start, as JSON. */}}
{{- define "revelator.externalPorts" -}}
{{- $settings := include "revelator.settings" . | fromJson -}}
{{- $retrieval := $settings.retrieval | default dict -}}
{{- $urls := list (get ($retrieval.embedding | default dict) "url") (get ($retrieval.reranker | default dict) "url") -}}
{{- $urls = append $urls (get ($settings.server.oidc | default dict) "jwks_url") -}}
{{- $urls = append $urls (get ($settings.tracing | default dict) "url") -}}
{{- if eq .Values.elasticsearch.mode "external" -}}{{- $urls = append $urls $retrieval.elasticsearch_url -}}{{- end -}}
{{- range $name, $engine := $settings.engines -}}
{{- if not (hasKey $.Values.workers $name) -}}{{- $urls = concat $urls ($engine.urls | default list) -}}{{- end -}}
{{- end -}}
{{- $ports := list -}}
{{- range $urls -}}
{{- if . -}}{{- $ports = append $ports (include "revelator.port" . | int) -}}{{- end -}}
{{- end -}}
{{- if eq .Values.qdrant.mode "external" -}}
{{- $ports = append $ports (include "revelator.port" $retrieval.qdrant_url | int) -}}
{{- with $retrieval.qdrant_grpc_port -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}

{{/* The port of a URL. */}}
{{- define "revelator.port" -}}
{{- $url := urlParse . -}}
{{- if regexMatch ":[0-9]+$" $url.host -}}
{{- regexFind "[0-9]+$" $url.host -}}
{{- else if eq $url.scheme "https" -}}443{{- else -}}80{{- end -}}
{{- end -}}

{{/* Egress to the name service. */}}
{{- define "revelator.dns" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}
