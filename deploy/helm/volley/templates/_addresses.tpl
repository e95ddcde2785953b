{{/* The pods by the names for which the certificate is valid. */}}
{{- define "volley.servers" -}}
{{ range $n := until (int .Values.shuffle.replicas) }}{{ if $n }},{{ end }}{{ $.Release.Name }}-shuffle-{{ $n }}.{{ $.Release.Name }}-shuffle:{{ $.Values.shuffle.port }}{{ end }}
{{- end -}}
{{- define "volley.workers" -}}
{{ range $n := until (int .Values.worker.replicas) }}{{ if $n }},{{ end }}{{ $.Release.Name }}-worker-{{ $n }}.{{ $.Release.Name }}-worker:{{ $.Values.worker.port }}{{ end }}
{{- end -}}
