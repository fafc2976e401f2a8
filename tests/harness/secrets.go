package harness

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// secrets has what programs have shown of the passwords and tokens of tests: by secret, the first text that has it; and
// which tests have registered them.
var secrets = struct {
	mu    sync.Mutex
	shown map[string]string
	users map[usage]bool
}{shown: map[string]string{}, users: map[usage]bool{}}

// usage says that a test uses a secret.
type usage struct {
	t      testing.TB
	secret string
}

// A secret of shortest bytes or more is in no other text by chance; one of more than longest bytes could be missed
// where it is split over two writes.
const shortest, longest = 8, 4096

// Secret registers a password or token that the test uses, and returns it. The test fails at its end if a program has
// shown it: in an Output, in what Try and Look return, or in the command line of a child of a daemon. Start and Try
// register those that they are given themselves.
func Secret(t testing.TB, secret string) string {
	t.Helper()
	if len(secret) < shortest {
		t.Fatalf("the secret %q is so short that other text may contain it: want %d or more characters", secret, shortest)
	}
	secrets.mu.Lock()
	defer secrets.mu.Unlock()
	if secrets.users[usage{t, secret}] {
		return secret
	}
	secrets.users[usage{t, secret}] = true
	if _, known := secrets.shown[secret]; !known {
		secrets.shown[secret] = ""
	}
	t.Cleanup(func() {
		secrets.mu.Lock()
		defer secrets.mu.Unlock()
		if text := secrets.shown[secret]; text != "" {
			t.Errorf("a program shows the secret %q:\n%s", secret, text)
		}
	})
	return secret
}

// login matches the user, if there is a password, and the secret of a URL.
var login = regexp.MustCompile(`[a-z]+://(?:[^\s:@]*:)?([^\s@]+)@`)

// secretsOf registers the passwords and tokens in the URLs of a command line or environment, and in the file of
// --token-file.
func secretsOf(t testing.TB, words []string) {
	t.Helper()
	for i, word := range words {
		for _, found := range login.FindAllStringSubmatch(word, -1) {
			Secret(t, found[1])
			if plain, err := url.PathUnescape(found[1]); err == nil {
				Secret(t, plain)
			}
		}
		if word == "--token-file" && i+1 < len(words) {
			if b, err := os.ReadFile(words[i+1]); err == nil { // else the program says what is wrong with it
				Secret(t, strings.TrimSpace(string(b)))
			}
		}
	}
}

// watch notes which secrets a text of a program shows.
func watch(text string) {
	secrets.mu.Lock()
	defer secrets.mu.Unlock()
	for secret, before := range secrets.shown {
		if at := strings.Index(text, secret); before == "" && at >= 0 {
			secrets.shown[secret] = text[max(0, at-200):min(len(text), at+len(secret)+200)]
		}
	}
}

// watchChildren is watch for the command lines of the children of a process, which every user of the machine can read.
func watchChildren(parent int) {
	for _, pid := range Children(parent) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		watch(strings.ReplaceAll(string(line), "\x00", " "))
	}
}
