package safetensors

import (
	"strings"
	"testing"

	"patchbay/engine/datafile"
)

// TestDownloadsGoneWrong checks that errors say what a file is instead of a model, and that an empty model is a model.
func TestDownloadsGoneWrong(t *testing.T) {
	for text, says := range map[string]string{
		"<!DOCTYPE html>\n<html class=\"\">":                       "this is a web page, not a model",
		"\xef\xbb\xbf  <HTML><head>":                               "this is a web page, not a model",
		"version https://git-lfs.github.com/spec/v1\noid sha256:a": "this is a git-lfs pointer, not a model",
		`{"error":"Repository not found"}`:                         "this is a text, not a model",
		"PK\x03\x04\x14\x00\x08\x08archive/data.pkl":               "this is a pickled file",
		"abc": "not a safetensors file: 3 bytes",
	} {
		if _, err := OpenBytes([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.30q: %v, want %q", text, err, says)
		}
	}
	if what := foreign(datafile.Of([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))); what != "" {
		t.Errorf("a file without tensors is called: %s", what)
	}
}
