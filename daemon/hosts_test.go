package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestHostsAreRefused checks that lists and keys that make no sense are refused with what would do.
func TestHostsAreRefused(t *testing.T) {
	dir := t.TempDir()
	key, open, short, list := filepath.Join(dir, "key"), filepath.Join(dir, "open"), filepath.Join(dir, "short"),
		filepath.Join(dir, "list")
	if err := NewKeyFile(key); err != nil {
		t.Fatal(err)
	}
	if err := NewKeyFile(key); err == nil {
		t.Error("a key was replaced")
	}
	secret, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{open: string(secret), short: "password\n", list: "a # first\n\nb:1\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(open, 0o640); err != nil {
		t.Fatal(err)
	}
	if got, err := parseHosts("@" + list); err != nil || !slices.Equal(got, []string{"a:7117", "b:1"}) {
		t.Errorf("a file of hosts gives %v, %v", got, err)
	}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Hosts: "a,b:7118,[::1]:1,::1", ClusterKey: key, Workers: 1}, ""},
		{Config{Hosts: "a,a:7117", ClusterKey: key}, "a:7117 stands there twice"},
		{Config{Hosts: "a,,b", ClusterKey: key}, `"": want HOST:PORT, as in a:7117,b:7117`},
		{Config{Hosts: "a:cuda:0-3", ClusterKey: key}, "want a here, and `patchbay host --devices cuda:0-3` there"},
		{Config{Hosts: "a:99999", ClusterKey: key}, "want HOST:PORT"},
		{Config{Hosts: "@" + list + "x", ClusterKey: key}, "no such file"},
		{Config{Hosts: "a"}, "--cluster-key is missing"},
		{Config{Hosts: "a", ClusterKey: key + "x"}, "--new-key FILE` makes one"},
		{Config{Hosts: "a", ClusterKey: open}, "chmod 600"},
		{Config{Hosts: "a", ClusterKey: short}, "8 bytes: want 32 random ones"},
		{Config{Hosts: "a", ClusterKey: key, Transport: transportNCCL}, "add --trusted-network"},
		{Config{Hosts: "a", ClusterKey: key, Transport: transportNCCL, TrustedNetwork: true}, ""},
		{Config{Hosts: "a", ClusterKey: key, Workers: 2}, "a host serves one worker"},
		{Config{Hosts: "a", ClusterKey: key, Placement: placementChildren}, "want one of them"},
	} {
		err := c.cfg.checkHosts()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("--hosts %s: %v", c.cfg.Hosts, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("--hosts %s: got %v, want %q in it", c.cfg.Hosts, err, c.want)
		}
	}
}
