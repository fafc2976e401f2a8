package serve

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// protocolPage returns docs/protocol.md.
func protocolPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// words returns the set of names in a text.
func words(text string) map[string]bool {
	out := map[string]bool{}
	for _, w := range regexp.MustCompile(`[A-Za-z0-9_]+`).FindAllString(text, -1) {
		out[w] = true
	}
	return out
}

// section returns the text under a heading of the page.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("the page has no section %q", heading)
	}
	out, _, _ := strings.Cut(rest, "\n## ")
	return out
}

// fieldNames adds the JSON names of a struct type's fields to out and returns it; if deep, also those of nested types.
func fieldNames(t reflect.Type, deep bool, out map[string]bool) map[string]bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t == reflect.TypeFor[fault.Error]() {
		t = reflect.TypeFor[fault.Form]()
	}
	// these have their own sections
	if t.Kind() != reflect.Struct || len(out) > 0 &&
		(t == reflect.TypeFor[wire.Tensor]() || t == reflect.TypeFor[fault.Form]()) {
		return out
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "" || name == "-" {
			continue
		}
		out[name] = true
		if deep {
			fieldNames(f.Type, true, out)
		}
	}
	return out
}

// TestEveryFieldIsInItsSection checks that the page names every field of a message in the message's section.
func TestEveryFieldIsInItsSection(t *testing.T) {
	page := protocolPage(t)
	for heading, messages := range map[string][]any{
		"Verbs": {
			message.JobRequest{},
			message.JobsRequest{},
			message.DescribeRequest{},
			message.LoadRequest{},
			message.FreeRequest{},
			message.CancelReply{},
			message.RetryReply{},
			message.JobsReply{},
			message.ModelsReply{},
			message.DescribeReply{},
			message.LoadReply{},
			message.FreeReply{},
			message.ExecReply{},
			message.PongReply{},
			message.LimitsReply{},
		},
		"A job":                {message.RunRequest{}, message.Receipt{}},
		"Events":               {message.Event{}, message.Output{}, message.Preview{}, message.Heartbeat{}},
		"Jobs on JetStream":    {message.Record{}},
		"exec":                 {message.ExecRequest{}},
		"Payloads":             {wire.Ref{}, bulk.PullRequest{}, wire.Tensor{}},
		"sample":               {message.SampleRequest{}, message.SampleReply{}},
		"Frames":               {wire.Envelope{}},
		"What a daemon counts": {message.Stats{}},
		"Errors":               {wire.ErrorBody{}},
	} {
		has := words(section(t, page, heading))
		for _, m := range messages {
			deep := heading == "sample" || heading == "What a daemon counts" || heading == "Errors"
			for _, name := range slices.Sorted(maps.Keys(fieldNames(reflect.TypeOf(m), deep, map[string]bool{}))) {
				if !has[name] && name != "v" {
					t.Errorf("section %q does not name the field %s of %T", heading, name, m)
				}
			}
		}
	}
}

// TestRepliesOfVerbs compares the lists of fields in the list of verbs with the structs, both ways.
func TestRepliesOfVerbs(t *testing.T) {
	list := strings.ReplaceAll(section(t, protocolPage(t), "Verbs"), "\n  ", " ")
	for _, v := range message.Verbs() {
		if !strings.HasPrefix(v.Answer, "{") || v.Name == message.VerbDescribe { // describe has one of three replies
			continue
		}
		verb, reply := v.Name, v.Reply
		row := regexp.MustCompile(`(?m)^- \*\*` + verb + `\*\*:.* Replies: \{(.*)\}[^}]*$`).FindStringSubmatch(list)
		if row == nil {
			t.Errorf("what is said of %s has no {fields} among its replies", verb)
			continue
		}
		inner := regexp.MustCompile(`\{[^{}]*\}|\[[^\[\]]*\]|:`).ReplaceAllString(row[1], "")
		var got []string
		for _, name := range strings.Split(inner, ",") {
			got = append(got, strings.TrimSpace(name))
		}
		slices.Sort(got)
		if want := slices.Sorted(maps.Keys(fieldNames(reflect.TypeOf(reply), false, map[string]bool{}))); !slices.Equal(got,
			want) {
			t.Errorf("what is said of %s lists %v, the reply has %v", verb, got, want)
		}
	}
	defs := Schema()["$defs"].(map[string]any)
	for _, v := range message.Verbs() {
		verb := v.Name
		request, reply := defs[verb+".request"], defs[verb+".reply"]
		if verb == message.VerbRun || verb == message.VerbSubmit {
			reply = defs["receipt"]
		}
		if v.NeedsBody && request == nil || reply == nil {
			t.Errorf("the JSON Schema lacks the request or the reply of %s", verb)
		}
	}
}

// TestNamesOnTheWire compares subjects, headers, streams, buckets, events and metrics of the code with those of the
// page, both ways.
func TestNamesOnTheWire(t *testing.T) {
	page := protocolPage(t)
	subjects := append(message.VerbNames(), "events", "preview", "blob", "dead")
	equalNames(t, "subjects under patchbay.v1", subjects, namesIn(page, `patchbay\.v1\.(\w+)`))
	code := literals(t)
	headers := namesIn(code, `"((?:Patchbay|Nats-Msg)-[A-Z][A-Za-z-]*)"`)
	for h := range headers {
		if h == "Nats-Msg-Id" {
			delete(headers, h) // its name is a constant of the client library
		}
	}
	equalNames(t, "headers", slices.Collect(maps.Keys(headers)), namesIn(page, `(Patchbay-[A-Z][A-Za-z-]*)`))
	for _, s := range message.Streams() {
		name := strings.TrimPrefix(strings.TrimPrefix(s, "KV_"), "OBJ_")
		if !strings.Contains(page, "\n- "+name+": ") {
			t.Errorf("the lists of streams and buckets lack %s", name)
		}
	}
	events := section(t, page, "Events")
	for _, name := range []string{
		message.EventQueued, message.EventRetrying, message.EventStart, message.EventProgress, message.EventExecuted,
		message.EventMetrics, message.EventSuccess, message.EventError, message.EventInterrupted, message.EventExpired,
		"execution_cached", "executing", message.ReplyAccepted, message.ReplyOutput, message.ReplyPreview,
		message.ReplyHeartbeat, "record",
	} {
		if !words(events)[name] {
			t.Errorf("the section of events lacks %s", name)
		}
	}
	for _, state := range message.States() {
		if !words(events)[string(state)] {
			t.Errorf("the section of events lacks the state %s", state)
		}
	}
	metrics := namesIn(code,
		`"(?:patchbay_)?((?:jobs|job|step|steps|samples|axis|cache|worker|store|events|requests)_?[a-z_]*)", "[A-Z0-9]`)
	maps.Copy(metrics, namesIn(code, `"patchbay_([a-z_]+_seconds)", "model", `))
	equalNames(t, "metrics", slices.Collect(maps.Keys(metrics)),
		namesIn(section(t, page, "What a daemon counts"), `patchbay_([a-z_]+)`))
}

// TestNumbersOfThePage checks that limits and times are in the page as they are in the code.
func TestNumbersOfThePage(t *testing.T) {
	page := protocolPage(t)
	lim := wire.DefaultLimits()
	for _, want := range []string{
		fmt.Sprintf("%d MiB (%d MiB in frames), %d levels, %d values", lim.Bytes>>20, wire.MaxFrame>>20,
			lim.Depth, lim.Items),
		fmt.Sprintf("Bytes of %d KiB and more go beside", wire.BulkBytes>>10),
		fmt.Sprintf("A payload has at most %d GiB", wire.MaxRegion>>30),
		fmt.Sprintf("among the %d at most of the frame", wire.MaxFDs),
		fmt.Sprintf("every %d s.", int(previewLease.Seconds())),
		fmt.Sprintf("answers `no_such_job` after %d ms", ownerWait.Milliseconds()),
		fmt.Sprintf("at most %d dimensions", 8),
		"something comes at least every 2 s", "silence of 10 s on either side", "a handle lives 15 minutes",
		"in pieces of at most 512 KiB",
	} {
		if !strings.Contains(strings.ReplaceAll(page, "\n", " "), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

// namesIn returns the first groups of a pattern's matches.
func namesIn(text, pattern string) map[string]bool {
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		out[m[1]] = true
	}
	return out
}

func equalNames(t *testing.T, what string, want []string, got map[string]bool) {
	t.Helper()
	for _, name := range want {
		if !got[name] {
			t.Errorf("%s: the page lacks %s", what, name)
		}
	}
	for name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("%s: the page has %s, the code has not", what, name)
		}
	}
}

// literals returns the string literals of the ipc sources in order, each quoted and followed by ", ". Keys of composite
// literals are between them.
func literals(t *testing.T) string {
	t.Helper()
	var files []string
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") &&
			!strings.HasSuffix(filepath.Dir(path), "test") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if kv, ok := n.(*ast.KeyValueExpr); ok {
				if k, ok := kv.Key.(*ast.Ident); ok {
					out.WriteString(k.Name + ": ")
				}
			}
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil {
					out.WriteString(strconv.Quote(s) + ", ")
				}
			}
			return true
		})
	}
	return out.String()
}
