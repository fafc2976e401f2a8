package tests

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"patchbay/ipc/rights"
	"patchbay/tests/natsserver"
)

// TestAccess checks that daemon and commands work against nats-server processes that authenticate by password, NKey,
// credentials file and certificate, and that bad logins are refused.
func TestAccess(t *testing.T) {
	t.Parallel()
	program := buildProgram(t)
	flow := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(flow, []byte(quick), 0o644); err != nil {
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

// try runs a command and returns its exit code and what it printed.
func try(t *testing.T, program string, env []string, args ...string) (int, string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = t.TempDir() // run and get write pictures there
	cmd.Env = append(append(os.Environ(), "PATCHBAY_NATS_URL=", "PATCHBAY_SOCKET="), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// passwords returns the environment variables in which the server looks for the passwords of its users.
func passwords() []string {
	return []string{rights.PasswordVariable("root") + "=r00t", rights.PasswordVariable("alice") + "=wonderland"}
}

func passwordsAndKeys(t *testing.T, program, flow string) {
	dir := t.TempDir()
	daemonKey, daemonPublic := keyPair(t, dir, "daemon.nk", nkeys.CreateUser)
	ca := authority(t, dir)
	for _, name := range []string{"server", "client"} {
		ca.sign(t, filepath.Join(dir, name))
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
	s := startServer(t, program, "", append([]string{"--nats", url, "--nkey", daemonKey}, certs...)...)
	s.until("the worker is up", func() bool {
		code, _ := try(t, program, nil, append([]string{
			"jobs", "--nats",
			strings.Replace(url, "tls://", "tls://alice:wonderland@", 1),
		}, certs...)...)
		return code == 0
	})
	alice := append([]string{"--nats", strings.Replace(url, "tls://", "tls://alice:wonderland@", 1)}, certs...)
	for _, line := range commands(flow) {
		if code, out := try(t, program, nil, append(line, alice...)...); code != 0 ||
			line[0] == "doctor" && !strings.Contains(out, "answers;") {
			t.Errorf("%s ended with %d:\n%s", line[0], code, out)
		}
	}
	for _, row := range []struct {
		says string
		args []string
	}{
		{"refuses this user", append([]string{"--nats", strings.Replace(url, "tls://", "tls://alice:guess@", 1)}, certs...)},
		{"refuses this user", append([]string{"--nats", url}, certs...)},
		{"certificate", []string{"--nats", strings.Replace(url, "tls://", "tls://alice:wonderland@", 1)}},
		{"--tls-key go together", append([]string{"--nats", url}, certs[:4]...)},
		{"exclude each other", append([]string{"--nats", url, "--nkey", daemonKey, "--creds", daemonKey}, certs...)},
		{"does not allow", append(append([]string{}, alice...), "--inbox-prefix", "_INBOX.root")},
	} {
		if code, out := try(t, program, nil, append([]string{"jobs"}, row.args...)...); code == 0 ||
			!strings.Contains(out, row.says) {
			t.Errorf("%v ended with %d, want %q in:\n%s", row.args, code, row.says, out)
		}
	}
	if strings.Contains(s.log.String(), "iolation") {
		t.Errorf("the daemon lacks rights:\n%s", s.log)
	}
}

// credentials uses a server in operator mode, whose users have signed tokens. The paths of their files come from the
// environment.
func credentials(t *testing.T, program, flow string) {
	o := newOperator(t)
	n := natsserver.Start(t, natsserver.JetStream(t), o.conf)
	s := startServer(t, program, "", "--nats", n.URL, "--creds", o.creds[rights.RoleDaemon])
	env := []string{"PATCHBAY_NATS_URL=" + n.URL, "PATCHBAY_NATS_CREDS=" + o.creds[rights.RoleClient]}
	for _, line := range commands(flow) {
		if code, out := try(t, program, env, line...); code != 0 {
			t.Errorf("%s ended with %d:\n%s", line[0], code, out)
		}
	}
	if code, out := try(t, program, nil, "jobs", "--nats", n.URL); code == 0 ||
		!strings.Contains(out, "refuses this user") {
		t.Errorf("without credentials: %d\n%s", code, out)
	}
	if strings.Contains(s.log.String(), "iolation") {
		t.Errorf("the daemon lacks rights:\n%s", s.log)
	}
}

// operator is the configuration of a nats-server in operator mode, and one user of every role.
type operator struct {
	conf  string
	creds map[rights.Role]string // files
	user  map[rights.Role]string // public keys
}

// newOperator makes an operator with one account. The permissions of a role belong to the key that signs its users: in
// the users' own tokens they would be too long for a CONNECT.
func newOperator(t *testing.T) *operator {
	t.Helper()
	pairs := map[string]nkeys.KeyPair{}
	for name, create := range map[string]func() (nkeys.KeyPair, error){
		"operator": nkeys.CreateOperator,
		"account":  nkeys.CreateAccount, "system": nkeys.CreateAccount,
	} {
		k, err := create()
		if err != nil {
			t.Fatal(err)
		}
		pairs[name] = k
	}
	oc, ac, sc := jwt.NewOperatorClaims(public(t, pairs["operator"])), jwt.NewAccountClaims(public(t, pairs["account"])),
		jwt.NewAccountClaims(public(t, pairs["system"]))
	ac.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	o := &operator{creds: map[rights.Role]string{}, user: map[rights.Role]string{}}
	dir := t.TempDir()
	for _, role := range rights.Roles() {
		o.creds[role] = filepath.Join(dir, string(role)+".creds")
		o.user[role] = writeCreds(t, o.creds[role], role, ac)
	}
	token := func(c jwt.Claims) string {
		text, err := c.Encode(pairs["operator"])
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	o.conf = fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %s, %s: %s }\n",
		token(oc), sc.Subject, ac.Subject, token(ac), sc.Subject, token(sc))
	return o
}

// writeCreds adds a scoped signing key for a role to an account, writes the credentials of a user that it signs, and
// returns the user's public key.
func writeCreds(t *testing.T, path string, role rights.Role, ac *jwt.AccountClaims) string {
	t.Helper()
	signer, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	scope := jwt.NewUserScope()
	scope.Key, scope.Role = public(t, signer), string(role)
	rights := rights.Permissions(role, "USER")
	scope.Template.Pub.Allow.Add(rights.Publish...)
	for _, subject := range rights.Subscribe {
		scope.Template.Sub.Allow.Add(strings.Replace(subject, "USER", "{{subject()}}", 1))
	}
	ac.SigningKeys.AddScopedSigner(scope)
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	uc := jwt.NewUserClaims(public(t, user))
	uc.IssuerAccount = ac.Subject
	uc.SetScoped(true)
	token, err := uc.Encode(signer)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.FormatUserConfig(token, seed)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return uc.Subject
}

// usersInside gives the server inside the daemon users and a certificate, on an address that others can reach. Without
// either, the daemon does not open that address.
func usersInside(t *testing.T, program, flow string) {
	dir := t.TempDir()
	if code, out := try(t, program, nil, "serve", "--listen", "0.0.0.0:0", "--store", dir, "--socket", "off"); code == 0 ||
		!strings.Contains(out, "--token-file or --users-file") {
		t.Errorf("an open address without users: %d\n%s", code, out)
	}
	_, conf := try(t, program, nil, "serve", "--print-permissions=client=alice,admin=root")
	ca := authority(t, dir)
	ca.sign(t, filepath.Join(dir, "server"))
	users := filepath.Join(dir, "users.conf")
	if err := os.WriteFile(users, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, program, strings.Join(passwords(), " ")+` exec "$@"`, "--listen", "0.0.0.0:0", "--users-file",
		users, "--tls-cert", filepath.Join(dir, "server.pem"), "--tls-key", filepath.Join(dir, "server-key.pem"))
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.url, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	args := func(login string) []string {
		return []string{"--nats", "tls://" + login + "127.0.0.1:" + port, "--tls-ca", filepath.Join(dir, "ca.pem")}
	}
	for _, line := range commands(flow) {
		if code, out := try(t, program, nil, append(line, args("alice:wonderland@")...)...); code != 0 {
			t.Errorf("%s ended with %d:\n%s", line[0], code, out)
		}
	}
	if code, out := try(t, program, nil, append([]string{"jobs"}, args("")...)...); code == 0 ||
		!strings.Contains(out, "refuses this user") {
		t.Errorf("without a password: %d\n%s", code, out)
	}
}

func public(t *testing.T, k nkeys.KeyPair) string {
	t.Helper()
	p, err := k.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return p
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
	return path, public(t, k)
}

// certifier signs certificates for 127.0.0.1.
type certifier struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func authority(t *testing.T, dir string) *certifier {
	t.Helper()
	c := &certifier{cert: template("patchbay test authority")}
	c.cert.IsCA, c.cert.BasicConstraintsValid, c.cert.KeyUsage = true, true, x509.KeyUsageCertSign
	c.key = writePair(t, filepath.Join(dir, "ca"), c.cert, c.cert, nil)
	return c
}

func (c *certifier) sign(t *testing.T, path string) {
	t.Helper()
	cert := template("patchbay test")
	cert.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	writePair(t, path, cert, c.cert, c.key)
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

// writePair writes a new key and its certificate to PATH-key.pem and PATH.pem. The certificate is self-signed if by is
// nil.
func writePair(t *testing.T, path string, cert, parent *x509.Certificate, by *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		path + ".pem":     {Type: "CERTIFICATE", Bytes: der},
		path + "-key.pem": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}
