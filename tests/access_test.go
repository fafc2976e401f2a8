package tests

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"patchbay/ipc/rights"
	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// TestAccess checks that daemon and commands work against nats-server processes that authenticate by password, NKey,
// credentials file and certificate, and that bad logins are refused.
func TestAccess(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	flow := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(flow, []byte(harness.Quick), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Run("PasswordsNKeysTLS", func(t *testing.T) { passwordsAndKeys(t, program, flow) })
	t.Run("Creds", func(t *testing.T) { credentials(t, program, flow) })
	t.Run("ServerInside", func(t *testing.T) { usersInside(t, program, flow) })
}

// commands returns all commands that take --nats, as one user types them. Those with an id come after submit.
func commands(flow string) [][]string {
	return [][]string{
		{"submit", flow, "--id", "a1"},
		{"watch", "a1"},
		{"jobs"},
		{"get", "a1"},
		{"run", flow, "--id", "a2"},
		{"nodes", "KSampler"},
		{"models"},
		{"doctor"},
	}
}

// passwords returns the environment variables in which the server looks for the passwords of its users.
func passwords() []string {
	return []string{rights.PasswordVariable("root") + "=r00t-pass", rights.PasswordVariable("alice") + "=alice-passw0rd"}
}

func passwordsAndKeys(t *testing.T, program, flow string) {
	dir := t.TempDir()
	daemonKey, daemonPublic := keyPair(t, dir, "daemon.nk", nkeys.CreateUser)
	ca := harness.Authority(t, dir)
	for _, name := range []string{"server", "client"} {
		ca.Sign(t, filepath.Join(dir, name))
	}
	users, err := rights.ParseUsers("daemon=" + daemonPublic + ",admin=root,client=alice")
	if err != nil {
		t.Fatal(err)
	}
	tls := fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true, timeout: 5 }\n",
		filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem"), filepath.Join(dir, "ca.pem"))
	words := strings.ReplaceAll(strings.Join(passwords(), "\n"), "=", ": ") + "\n" // as configuration variables
	n := natsserver.Start(t, natsserver.JetStream(t), words, rights.ServerConfig(users), tls)
	url := strings.Replace(n.URL, "nats://", "tls://", 1)
	certs := []string{
		"--tls-ca", filepath.Join(dir, "ca.pem"), "--tls-cert", filepath.Join(dir, "client.pem"),
		"--tls-key", filepath.Join(dir, "client-key.pem"),
	}
	s := harness.Start(t, program, "", append([]string{"--nats", url, "--nkey", daemonKey}, certs...)...)
	s.Until("the worker is up", func() bool {
		code, _ := harness.Try(t, program, nil, append([]string{
			"jobs", "--nats",
			strings.Replace(url, "tls://", "tls://alice:alice-passw0rd@", 1),
		}, certs...)...)
		return code == 0
	})
	alice := append([]string{"--nats", strings.Replace(url, "tls://", "tls://alice:alice-passw0rd@", 1)}, certs...)
	for _, line := range commands(flow) {
		if code, out := harness.Try(t, program, nil, append(line, alice...)...); code != 0 ||
			line[0] == "doctor" && !strings.Contains(out, "answers;") {
			t.Errorf("%s ended with %d:\n%s", line[0], code, out)
		}
	}
	for _, row := range []struct {
		says string
		args []string
	}{
		{"refuses this user", append([]string{"--nats", strings.Replace(url, "tls://", "tls://a:gu3ss-pw@", 1)}, certs...)},
		{"refuses this user", append([]string{"--nats", url}, certs...)},
		{"certificate", []string{"--nats", strings.Replace(url, "tls://", "tls://alice:alice-passw0rd@", 1)}},
		{"--tls-key go together", append([]string{"--nats", url}, certs[:4]...)},
		{"exclude each other", append([]string{"--nats", url, "--nkey", daemonKey, "--creds", daemonKey}, certs...)},
		{"does not allow", append(append([]string{}, alice...), "--inbox-prefix", "_INBOX.root")},
	} {
		if code, out := harness.Try(t, program, nil, append([]string{"jobs"}, row.args...)...); code == 0 ||
			!strings.Contains(out, row.says) {
			t.Errorf("%v ended with %d, want %q in:\n%s", row.args, code, row.says, out)
		}
	}
	if strings.Contains(s.Log.String(), "iolation") {
		t.Errorf("the daemon lacks rights:\n%s", s.Log)
	}
}

// TestSecretsStayInside starts daemons with a password or token in the URL of their server, loses that server, and asks
// for whatever shows a server, also with wrong secrets and with URLs that cannot be parsed. The harness fails the test
// if a program shows the secret, or a worker has it in its command line.
func TestSecretsStayInside(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	for _, row := range []struct{ name, conf, login string }{
		{"password", "authorization { user: alice, password: %q }\n", "alice:%s@"},
		{"token", "authorization { token: %q }\n", "%s@"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			secret := harness.Secret(t, row.name+"-s3cret-0f-4lice")
			login := fmt.Sprintf(row.login, secret)
			n := natsserver.Start(t, natsserver.JetStream(t), fmt.Sprintf(row.conf, secret))
			at := func(host string) string { return "nats://" + login + host }
			url := at(strings.TrimPrefix(n.URL, "nats://"))
			byFlag := harness.Start(t, program, "", "--nats", url, "--metrics", "127.0.0.1:0")
			byVariable := harness.Start(t, program, fmt.Sprintf(`PATCHBAY_NATS_URL=%s exec "$@"`, url))
			byVariable.Worker()
			byFlag.Worker()
			for _, line := range [][]string{
				{"top", "--once"}, {"top", "--json"}, {"doctor"}, {"jobs"}, {"models"},
			} {
				if code, out := harness.Try(t, program, []string{"PATCHBAY_NATS_URL=" + url}, line...); code != 0 {
					t.Errorf("%s: %d\n%s", line, code, out)
				}
			}
			for _, command := range []string{"serve", "host", "run", "jobs"} {
				if code, out := harness.Try(t, program, []string{"PATCHBAY_NATS_URL=" + url}, command, "--help"); code != 0 ||
					!strings.Contains(out, "--nats") {
					t.Errorf("%s --help: %d\n%s", command, code, out)
				}
			}
			n.Kill()
			byFlag.Logged("NATS connection lost")
			byFlag.Until("the metrics say that the server is away", func() bool {
				code, text := byFlag.Look("/healthz")
				return code != http.StatusOK && strings.Contains(text, "not connected to "+n.URL)
			})
			n.Start()
			byFlag.Logged("NATS connection is back", n.URL)
			mistaken := []string{
				at("127.0.0.1:1"), at("127.0.0.1:port"), at("127.0.0.1%zz"), login + "127.0.0.1:1",
				"nats://127.0.0.1:1," + login + "127.0.0.1:2", "nats://alice:/" + secret + "@127.0.0.1:1",
				"nats://alice:" + secret + "@" + secret + "/" + secret + "@127.0.0.1:1",
			}
			for _, bad := range mistaken {
				for _, line := range [][]string{
					{"jobs"}, {"serve", "--socket", "off", "--store", t.TempDir(), "--models", harness.DemoModels(t)},
				} {
					if code, out := harness.Try(t, program, []string{"PATCHBAY_NATS_URL=" + bad}, line...); code != 3 && code != 2 ||
						!strings.Contains(out, "127.0.0.1") {
						t.Errorf("%s at %s: %d\n%s", line[0], bad, code, out)
					}
				}
			}
		})
	}
}

// credentials uses a server in operator mode, whose users have signed tokens. The paths of their files come from the
// environment.
func credentials(t *testing.T, program, flow string) {
	o := harness.NewOperator(t)
	n := natsserver.Start(t, natsserver.JetStream(t), o.Conf)
	s := harness.Start(t, program, "", "--nats", n.URL, "--creds", o.Creds[rights.RoleDaemon])
	env := []string{"PATCHBAY_NATS_URL=" + n.URL, "PATCHBAY_NATS_CREDS=" + o.Creds[rights.RoleClient]}
	for _, line := range commands(flow) {
		if code, out := harness.Try(t, program, env, line...); code != 0 {
			t.Errorf("%s ended with %d:\n%s", line[0], code, out)
		}
	}
	if code, out := harness.Try(t, program, nil, "jobs", "--nats", n.URL); code == 0 ||
		!strings.Contains(out, "refuses this user") {
		t.Errorf("without credentials: %d\n%s", code, out)
	}
	if strings.Contains(s.Log.String(), "iolation") {
		t.Errorf("the daemon lacks rights:\n%s", s.Log)
	}
}

// usersInside gives the server inside the daemon users and a certificate, on an address that others can reach. Without
// either, the daemon does not open that address.
func usersInside(t *testing.T, program, flow string) {
	dir := t.TempDir()
	if code, out := harness.Try(t, program, nil, "serve", "--listen", "0.0.0.0:0", "--store", dir, "--socket",
		"off"); code == 0 ||
		!strings.Contains(out, "--token-file or --users-file") {
		t.Errorf("an open address without users: %d\n%s", code, out)
	}
	_, conf := harness.Try(t, program, nil, "serve", "--print-permissions=client=alice,admin=root")
	ca := harness.Authority(t, dir)
	ca.Sign(t, filepath.Join(dir, "server"))
	users := filepath.Join(dir, "users.conf")
	if err := os.WriteFile(users, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.Start(t, program, strings.Join(passwords(), " ")+` exec "$@"`, "--listen", "0.0.0.0:0", "--users-file",
		users, "--tls-cert", filepath.Join(dir, "server.pem"), "--tls-key", filepath.Join(dir, "server-key.pem"))
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.URL, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	args := func(login string) []string {
		return []string{"--nats", "tls://" + login + "127.0.0.1:" + port, "--tls-ca", filepath.Join(dir, "ca.pem")}
	}
	for _, line := range commands(flow) {
		if code, out := harness.Try(t, program, nil, append(line, args("alice:alice-passw0rd@")...)...); code != 0 {
			t.Errorf("%s ended with %d:\n%s", line[0], code, out)
		}
	}
	if code, out := harness.Try(t, program, nil, append([]string{"jobs"}, args("")...)...); code == 0 ||
		!strings.Contains(out, "refuses this user") {
		t.Errorf("without a password: %d\n%s", code, out)
	}
}

// keyPair writes the seed of a new key to a file and returns its path and the public key.
func keyPair(t *testing.T, dir, name string, create func() (nkeys.KeyPair, error)) (path, pub string) {
	t.Helper()
	k, err := create()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := k.Seed()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, harness.Public(t, k)
}
