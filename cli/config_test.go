package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"patchbay/daemon"
)

// settingsFile writes a file of settings.
func settingsFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "patchbay.yaml")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// bare removes the settings of the person who runs the tests.
func bare(t *testing.T) {
	t.Helper()
	for _, line := range os.Environ() {
		if name, _, _ := strings.Cut(line, "="); strings.HasPrefix(name, "PATCHBAY_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("PATCHBAY_HOME", t.TempDir())
}

// shown runs config show and returns each line without the spaces before the origin.
func shown(t *testing.T, args ...string) map[string]string {
	t.Helper()
	text, err := command(t, append([]string{"config", "show"}, args...)...)
	if err != nil {
		t.Fatalf("config show %v: %v", args, err)
	}
	out := map[string]string{}
	for line := range strings.Lines(text) {
		key, rest, _ := strings.Cut(line, ": ")
		out[key] = regexp.MustCompile(` +#`).ReplaceAllString(strings.TrimSpace(rest), " #")
	}
	return out
}

// TestPrecedence gives settings in all ways: the command line goes before the environment, that before the file, and
// that before the default.
func TestPrecedence(t *testing.T) {
	bare(t)
	models := t.TempDir()
	path := settingsFile(t, "# the machine in the cellar", "models: "+models, "workers: 2", "max-queue: 5",
		"graphs: off", "keep-for: 24h", "http-origin: [https://a.example, https://b.example]", "http: 127.0.0.1:0",
		"deterministic: true", "max-depth: 20", "max-steps: 30")
	t.Setenv("PATCHBAY_MAX_QUEUE", "7")
	t.Setenv("PATCHBAY_MAX_DEPTH", "21")
	got := shown(t, "--config", path, "--workers", "3", "--max-depth", "22")
	for key, want := range map[string]string{
		"workers":       "3 # command line",
		"max-depth":     "22 # command line",
		"max-queue":     "7 # environment: PATCHBAY_MAX_QUEUE",
		"max-steps":     "30 # " + path + ":11",
		"graphs":        "off # " + path + ":5",
		"keep-for":      "24h0m0s # " + path + ":6",
		"http-origin":   "['https://a.example', 'https://b.example'] # " + path + ":7",
		"deterministic": "true # " + path + ":9",
		"models":        "[" + models + "] # " + path + ":2",
		"attempts":      "3 # default",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	for key := range got {
		if key == "config" || key == "help" || key == "print-permissions" {
			t.Errorf("%s is no setting", key)
		}
	}
}

// TestModelsOf checks that folders of models in the environment go before those of the file, also those of a ComfyUI
// there, and after those of the command line.
func TestModelsOf(t *testing.T) {
	bare(t)
	comfy, other, given := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(comfy, "models"), 0o700); err != nil {
		t.Fatal(err)
	}
	both := settingsFile(t, "models: ["+given+"]", "comfyui: "+comfy)
	for _, c := range []struct {
		variable string
		args     []string
		want     []string
	}{
		{"", []string{"--config", both}, []string{given, comfy + "/models"}},
		{other + ":" + given, []string{"--config", both}, []string{other, given, comfy + "/models"}},
		{other, []string{"--config", both, "--models", comfy}, []string{comfy, comfy + "/models"}},
		{other, nil, []string{other}},
		{other, []string{"--comfyui", comfy}, []string{comfy + "/models"}},
	} {
		t.Setenv("PATCHBAY_MODELS", c.variable)
		got, _, _ := strings.Cut(shown(t, c.args...)["models"], " #")
		if want := "[" + strings.Join(c.want, ", ") + "]"; got != want {
			t.Errorf("PATCHBAY_MODELS=%s %v: models are %s, want %s", c.variable, c.args, got, want)
		}
	}
}

// TestListenAndNATS checks which NATS server a daemon uses where one place names an external one and another the
// address of one inside.
func TestListenAndNATS(t *testing.T) {
	bare(t)
	listen, nats := settingsFile(t, "listen: 127.0.0.1:0"), settingsFile(t, "nats: nats://h:1")
	for _, c := range []struct {
		variable string
		args     []string
		want     string
	}{
		{"nats://e:1", []string{"--listen", "127.0.0.1:0"}, `""`},
		{"nats://e:1", []string{"--config", listen}, "nats://e:1"},
		{"", []string{"--config", listen, "--nats", "nats://f:1"}, "nats://f:1"},
		{"", []string{"--config", nats, "--listen", "127.0.0.1:0"}, `""`},
		{"nats://e:1", []string{"--config", nats}, "nats://e:1"},
	} {
		t.Setenv("PATCHBAY_NATS_URL", c.variable)
		if got, _, _ := strings.Cut(shown(t, c.args...)["nats"], " #"); got != c.want {
			t.Errorf("PATCHBAY_NATS_URL=%s %v: nats is %s, want %s", c.variable, c.args, got, c.want)
		}
	}
}

// TestShownIsAFile checks that what config show prints is a file with the same settings, all of them, and that it has
// no password.
func TestShownIsAFile(t *testing.T) {
	bare(t)
	models := t.TempDir()
	text, err := command(t, "config", "show", "--models", models, "--nats", "nats://eve:passw0rd@h:1", "--graphs", "on",
		"--http", "h:0", "--http-origin", "http://a", "--keep-bytes", "20G")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "passw0rd") || strings.Contains(text, "eve") {
		t.Errorf("a password is shown:\n%s", text)
	}
	text = strings.ReplaceAll(text, "listen: 127.0.0.1:4222", "#") // which excludes nats where both are given
	path := settingsFile(t, text)
	again, err := command(t, "config", "show", "--config", path)
	if err != nil {
		t.Fatal(err)
	}
	origin := regexp.MustCompile(`(?m) *#.*$`)
	want, got := origin.ReplaceAllString(text, ""), origin.ReplaceAllString(again, "")
	got = strings.ReplaceAll(got, "listen: 127.0.0.1:4222", "")
	if want != got {
		t.Errorf("the settings are\n%s\nwant\n%s", got, want)
	}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	serveSettings(f, &daemon.Config{})
	f.VisitAll(func(one *pflag.Flag) {
		if one.Name != "listen" && !strings.Contains(again, path+":"+fmt.Sprint(lineOf(text, one.Name))+"\n") {
			t.Errorf("%s is not taken from the file", one.Name)
		}
	})
}

// lineOf returns the number of the line that sets a key.
func lineOf(text, key string) int {
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, key+":") {
			return i + 1
		}
	}
	return 0
}

// TestConfigCheck checks that every mistake in a file is said with its line, and what would be right.
func TestConfigCheck(t *testing.T) {
	bare(t)
	models := t.TempDir()
	for _, c := range []struct {
		lines []string
		want  []string // with %: the path
	}{
		{[]string{"models: " + models, "queue: memory"}, nil},
		{[]string{"# nothing"}, nil},
		{[]string{"---"}, nil},
		{
			[]string{
				"max_queu: 3", "quue: memory", "colour: red", "config: x", "workers: [1]", "attempts: many", "keep-for: 24",
			},
			[]string{
				"%:1: there is no setting max_queu, did you mean max-queue?",
				"%:2: there is no setting quue, did you mean queue?", "%:3: there is no setting colour; there are ",
				"%:4: there is no setting config: it is for the command line only",
				"%:5: workers: want a whole number, not a list", `%:6: attempts: "many": want a whole number`,
				`%:7: keep-for: "24": want a duration, as in 30s or 24h`,
			},
		},
		{
			[]string{"graphs:", "models: {a: b}", "workers: 2", "workers: 3", "deterministic: yes", "replicas: 1.5"},
			[]string{
				"%:1: graphs: want a value; leave the line out for the default", "%:2: models: want a value, or a list of values",
				"%:4: workers is there already, in line 3", `%:5: deterministic: "yes": want true or false`,
				`%:6: replicas: "1.5": want a whole number`,
			},
		},
		{[]string{"log: info", "queue: fast"}, []string{"%:2: queue fast: want durable or memory"}},
		{[]string{"workers: 65"}, []string{"%:1: workers 65: want 1 to 64"}},
		{[]string{"templates: " + models}, []string{"%:1: templates is for --http ADDRESS"}},
		{
			[]string{"log: info", "listen: 127.0.0.1:0", "nats: h:1"},
			[]string{"%:3: nats uses another NATS server and listen one inside: they exclude each other"},
		},
		{[]string{"models: /nowhere/at/all"}, []string{"%:1: models (or PATCHBAY_MODELS): "}},
		{[]string{"- models"}, []string{"%:1: want KEY: VALUE, one setting a line"}},
		{[]string{"a: [b"}, []string{"%: yaml: line "}},
		{[]string{"log: info", "---", "log: warn"}, []string{"%: want one document, not several"}},
		{[]string{"log: &a info", "queue: *a"}, []string{"%:2: queue: want a value, or a list of values"}},
		{[]string{"log: " + strings.Repeat("x", 1<<20)}, []string{"%: it has more than 1024 KiB"}},
	} {
		path := settingsFile(t, c.lines...)
		out, err := command(t, "config", "check", path)
		if len(c.want) == 0 {
			if err != nil || !strings.Contains(out, "nothing is wrong") {
				t.Errorf("%q: %s (%v)", c.lines, out, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%.80q is taken", c.lines)
			continue
		}
		said := strings.Split(err.Error(), "\n")
		if len(said) != len(c.want) {
			t.Errorf("%.80q: %d mistakes are said, want %d:\n%v", c.lines, len(said), len(c.want), err)
			continue
		}
		said, want := slices.Sorted(slices.Values(said)), slices.Sorted(slices.Values(c.want))
		for i := range want {
			if !strings.HasPrefix(said[i], strings.ReplaceAll(want[i], "%", path)) {
				t.Errorf("%.80q: said is %q, want %q", c.lines, said[i], want[i])
			}
		}
	}
	login := settingsFile(t, "nats: nats://eve:passw0rd@h:1")
	for mode, taken := range map[os.FileMode]bool{0o600: true, 0o640: true, 0o644: false} {
		if err := os.Chmod(login, mode); err != nil {
			t.Fatal(err)
		}
		if out, err := command(t, "config", "check", login); (err == nil) != taken || strings.Contains(fmt.Sprint(out, err),
			"passw0rd") {
			t.Errorf("a file with a login and mode %o: %s %v", mode, out, err)
		}
	}
	if _, err := command(t, "config", "check", filepath.Join(models, "nowhere.yaml")); err == nil {
		t.Error("a file that is not there is taken")
	}
}
