{{- define "revelator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "revelator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "revelator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "revelator.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of selectors: (list $ COMPONENT) */}}
{{- define "revelator.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "revelator.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of everything: (list $ COMPONENT) */}}
{{- define "revelator.labels" -}}
{{- $root := index . 0 -}}
{{ include "revelator.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "revelator.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}

{{- define "revelator.secretName" -}}
{{- .Values.secrets.existing | default (include "revelator.fullname" .) -}}
{{- end -}}

{{/* The entries that the Secret has, as JSON. */}}
{{- define "revelator.secretKeys" -}}
{{- if .Values.secrets.existing -}}
{{- .Values.secrets.keys | toJson -}}
{{- else -}}
{{- keys .Values.secrets.values | sortAlpha | toJson -}}
{{- end -}}
{{- end -}}

{{/* "yes" where the Secret has an entry, else nothing: (list $ KEY) */}}
{{- define "revelator.has" -}}
{{- if has (index . 1) (include "revelator.secretKeys" (index . 0) | fromJsonArray) -}}yes{{- end -}}
{{- end -}}

{{/* "yes" where a store lives in the gateway. */}}
{{- define "revelator.embedded" -}}
{{- if or (eq .Values.elasticsearch.mode "embedded") (eq .Values.qdrant.mode "embedded") -}}yes{{- end -}}
{{- end -}}

{{/* A variable from an entry of the Secret, where it has that: (list $ VARIABLE KEY) */}}
{{- define "revelator.secretVariable" -}}
{{- $root := index . 0 -}}
{{- if include "revelator.has" (list $root (index . 2)) -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ include "revelator.secretName" $root }}
      key: {{ index . 2 }}
{{- end -}}
{{- end -}}

{{/* What every container may do: nothing beyond its own volumes. */}}
{{- define "revelator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The user of the images: (list UID). No service account is used, and no variables of services:
     those of one named revelator would be taken for settings. */}}
{{- define "revelator.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ index . 0 }}
  runAsGroup: {{ index . 0 }}
  fsGroup: {{ index . 0 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{/* Where a pod may run: the fields of that name in a set of values. */}}
{{- define "revelator.placement" -}}
{{- $fields := pick . "nodeSelector" "tolerations" "affinity" "priorityClassName" -}}
{{- range $field, $value := $fields }}
{{- if not $value }}{{ $fields = omit $fields $field }}{{ end }}
{{- end -}}
{{- if $fields }}{{ toYaml $fields }}{{ end -}}
{{- end -}}

{{/* The spec of a claim: (list SIZE STORAGE_CLASS) */}}
{{- define "revelator.claim" -}}
accessModes: [ReadWriteOnce]
{{- with index . 1 }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ index . 0 }}
{{- end -}}

{{/* Seconds that running questions get at SIGTERM. */}}
{{- define "revelator.drainSeconds" -}}
{{- if kindIs "invalid" .Values.gateway.drainSeconds -}}
{{- $limits := .Values.settings.limits | default dict -}}
{{- add (get $limits "timeout_s" | default 60 | ceil) 5 -}}
{{- else -}}
{{- .Values.gateway.drainSeconds -}}
{{- end -}}
{{- end -}}
