package serve

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
)

// TestProtocolPageIsTrue compares docs/protocol.md with the code: errors, verbs, fields of a job, and the frames
// byte for byte.
func TestProtocolPageIsTrue(t *testing.T) {
	b, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	var rows strings.Builder
	for _, c := range fault.Public() {
		fmt.Fprintf(&rows, "- %s %d%s: %s\n", c.Code, c.Status,
			map[bool]string{true: ", retryable", false: ""}[c.Retryable], c.When)
	}
	if !strings.HasSuffix(strings.TrimSpace(page), strings.TrimSpace(rows.String())) {
		t.Errorf("the list of errors must end the page and read\n%s", rows.String())
	}
	if table := verbTable(); !strings.Contains(page, table) {
		t.Errorf("the table of verbs must read\n%s", table)
	}
	known := namesIn(section(t, page, "A job"), `(?m)^- (\w+): `)
	fields := pyjson.NewObject()
	for f := range known {
		fields.Set(f, nil)
	}
	for _, f := range []string{
		"workflow", "id", "targets", "inputs", "extra_pnginfo", "no_metadata", "plan", "preview",
		"tied", "front", "priority", "queue_ttl_ms", "not_before", "deadline_ms", "client", "attempt", "strict",
	} {
		if !known[f] {
			t.Errorf("the list of a job lacks %s", f)
		}
	}
	if extra := wire.UnknownField(fields, reflect.TypeFor[message.RunRequest]()); extra != "" {
		t.Errorf("the field %s is in the page and not in RunRequest", extra)
	}
	sample := pyjson.NewObject()
	for _, f := range []string{
		"id", "model", "sampler", "sampling", "sigmas", "noise", "noise_draws", "latent", "mask", "seed", "cfg",
		"cfg1_shortcut", "conds", "dual", "cache", "cfg_norm", "preview",
		"want_x0", "plan",
	} {
		sample.Set(f, nil)
		if !strings.Contains(section(t, page, "sample"), "\n- "+f+": ") {
			t.Errorf("the list of sample lacks %s", f)
		}
	}
	if extra := wire.UnknownField(sample, reflect.TypeFor[message.SampleRequest]()); extra != "" {
		t.Errorf("the field %s is in the page and not in SampleRequest", extra)
	}
	frame := regexp.MustCompile("(?s)```hex\n(.*?)```").FindStringSubmatch(page)
	if frame == nil {
		t.Fatal("the page has no frame in hex")
	}
	var raw []byte
	for _, line := range strings.Split(frame[1], "\n") {
		raw = append(raw, leadingHex(line)...)
	}
	body, err := wire.Encode(pyjson.NewObject("op", "describe", "tag", int64(7), "class", "KSampler"), wire.Msgpack)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw, wiretest.FrameOf(body)) {
		t.Errorf("the page has\n%s\nthe code sends\n%s", hex.Dump(raw), hex.Dump(wiretest.FrameOf(body)))
	}
}

// leadingHex reads the pairs of hex digits before the explanation.
func leadingHex(line string) []byte {
	var out []byte
	for _, word := range strings.Fields(line) {
		b, err := hex.DecodeString(word)
		if err != nil || len(b) != 1 {
			break
		}
		out = append(out, b[0])
	}
	return out
}

// verbTable returns the table of verbs, and what each takes and answers, as docs/protocol.md must have them.
func verbTable() string {
	var b strings.Builder
	b.WriteString("| verb | NATS subject | queue group |\n|---|---|---|\n")
	for _, v := range message.Verbs() {
		group := "yes"
		switch {
		case v.PerJob:
			group = "owner"
		case v.Everyone:
			group = "no"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", v.Name, v.Subject(`\<job\>`), group)
	}
	b.WriteString("\n")
	for _, v := range message.Verbs() {
		body := strings.Replace(v.Body, "none", "no body", 1)
		b.WriteString(wrapped(fmt.Sprintf("- **%s**: %s. Replies: %s.", v.Name, body, v.Answer)))
	}
	return b.String() + "\n"
}

// wrapped breaks an item of a list into lines of at most 120 characters.
func wrapped(item string) string {
	var b strings.Builder
	line := ""
	for _, word := range strings.Fields(item) {
		if line != "" && len(line)+1+len(word) > 120 {
			b.WriteString(line + "\n")
			line = " "
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return b.String() + line + "\n"
}

// TestEveryVerbIsAnswered checks that the table of verbs and the handlers have the same verbs.
func TestEveryVerbIsAnswered(t *testing.T) {
	var got []string
	for name, f := range (&Service{}).handlers() {
		if f == nil {
			t.Errorf("nobody answers %s", name)
		}
		got = append(got, name)
	}
	want := message.VerbNames()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("answered are %v, the table has %v", got, want)
	}
}
