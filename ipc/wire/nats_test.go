package wire

import (
	"strings"
	"testing"
)

// TestRedact compares with URLs that are written without their secrets by hand, and checks the errors of URLs that do
// not parse.
func TestRedact(t *testing.T) {
	for given, want := range map[string]string{
		"":                                "",
		"nats://h:4222":                   "nats://h:4222",
		"h:4222":                          "h:4222",
		"nats://alice:pw@h:4222":          "nats://h:4222",
		"nats://token@h":                  "nats://h",
		"tls://alice:p@w/x@h":             "tls://h",
		"nats://alice:pw://x@h":           "nats://h",
		"alice:pw@h:4222":                 "h:4222",
		"token@h":                         "h",
		"nats://a:pw@h,nats://b:pw@i":     "nats://i",
		"nats://a:pw@h,nats://i":          "nats://h,nats://i",
		"nats://a:pw@h,b:pw@i:1,nats://j": "nats://i:1,nats://j",
		"wss://alice:pw,w@h:443/path":     "wss://h:443/path",
	} {
		if got := Redact(given); got != want {
			t.Errorf("Redact(%q) is %q, want %q", given, got, want)
		}
	}
	for _, bad := range []string{
		"nats://alice:s3cr/t@h", "nats://alice:s3cr%zzt@h", "alice:s3cr/t@h", "nats://s3cr\x7f@h", "nats://h,a:s3cr/t@i",
		"nats://alice:p@s3cr/t@h", "alice:p@s3cr/t@h", "nats://h,nats://a:p@s3cr/t@i",
	} {
		_, err := Connect(bad, Access{}, nil, "test")
		if err == nil || !strings.Contains(err.Error(), "%2F") || strings.Contains(err.Error(), "s3") {
			t.Errorf("%q: got %v, want an error that says how to write a password, and has none", bad, err)
		}
	}
}
