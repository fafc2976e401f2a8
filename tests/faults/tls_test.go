package faults

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// TestTLS checks that faults of a NATS server's certificate are reported to a daemon or a client with what to do about
// them, and that a daemon survives a change of certificate and authority.
func TestTLS(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	dir := t.TempDir()
	ca := harness.Authority(t, dir)
	cert := func(name string, change func(*x509.Certificate)) {
		c := harness.Template("patchbay test")
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		change(c)
		harness.WritePair(t, filepath.Join(dir, name), c, ca.Cert, ca.Key)
	}
	good := func(*x509.Certificate) {}
	cert("server", good)
	n := natsserver.Start(t, natsserver.JetStream(t), fmt.Sprintf("tls { cert_file: %q, key_file: %q, timeout: 5 }\n",
		filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem")))
	url := strings.Replace(n.URL, "nats://", "tls://", 1)
	trust := []string{"--tls-ca", filepath.Join(dir, "ca.pem")}
	both := func(url, want string, args ...string) {
		t.Helper()
		serve := []string{
			"serve", "--nats", url, "--store", filepath.Join(dir, "unused"), "--socket", "off", "--models",
			harness.DemoModels(t),
			"--input", dir, "--output", dir,
		}
		for _, line := range [][]string{{"jobs", "--nats", url}, serve} {
			code, out := harness.Try(t, program, nil, append(line, args...)...)
			if code != map[string]int{"jobs": 3, "serve": 2}[line[0]] || !strings.Contains(out, want) {
				t.Errorf("%s ended with %d, want %q:\n%s", line[0], code, want, out)
			}
		}
	}
	reload := func() {
		n.Kill() // a server that rereads its files keeps the connections that stand
		n.Start()
	}

	s := harness.Start(t, program, "", append(trust, "--nats", url)...)
	works := func(id string) {
		t.Helper()
		flow := filepath.Join(dir, "flow.json")
		if err := os.WriteFile(flow, []byte(harness.Quick), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Until(id+" is done", func() bool {
			code, _ := harness.Try(t, program, nil, append([]string{"run", flow, "--id", id, "--nats", url}, trust...)...)
			return code == 0
		})
	}
	works("first")
	both(url, "--tls-ca FILE")
	plain := natsserver.Start(t, natsserver.JetStream(t))
	both(strings.Replace(plain.URL, "nats://", "tls://", 1), "it has no TLS", trust...)

	cert("server", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	reload()
	both(url, "its certificate expired at ", trust...)
	s.Until("the daemon says why it has lost the server", func() bool {
		return strings.Contains(s.Log.String(), "its certificate expired at ")
	})
	cert("server", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"gpu.example"} })
	reload()
	both(url, "its certificate is for gpu.example: use a name that is in it, or put 127.0.0.1 into it", trust...)

	ca = harness.Authority(t, dir) // a new one in the file that all of them have been given
	cert("server", good)
	reload()
	works("swapped")
}
