package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// started is how an example starts a daemon.
type started struct {
	args  []string
	grace time.Duration // after which it is killed once it was asked to stop
}

// inCompose returns the daemons of examples/deploy/compose.yaml, and the names of its NATS servers.
func inCompose(t *testing.T) (daemons []started, servers []string) {
	t.Helper()
	var file struct {
		Services map[string]struct {
			Image           string
			Command         []string
			StopGracePeriod string `yaml:"stop_grace_period"`
		}
	}
	b, err := os.ReadFile("../examples/deploy/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	for name, s := range file.Services {
		if s.Image != "patchbay" {
			servers = append(servers, name)
			continue
		}
		grace, err := time.ParseDuration(s.StopGracePeriod)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		daemons = append(daemons, started{s.Command, grace})
	}
	return daemons, servers
}

// inKubernetes is the same for examples/deploy/kubernetes.yaml.
func inKubernetes(t *testing.T) (daemons []started, servers []string) {
	t.Helper()
	b, err := os.ReadFile("../examples/deploy/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for read := yaml.NewDecoder(bytes.NewReader(b)); ; {
		var file struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				Replicas int
				Template struct {
					Spec struct {
						Grace      int `yaml:"terminationGracePeriodSeconds"`
						Containers []struct {
							Image string
							Args  []string
						}
					}
				}
			}
		}
		switch err := read.Decode(&file); {
		case errors.Is(err, io.EOF):
			return daemons, servers
		case err != nil:
			t.Fatal(err)
		case file.Kind != "StatefulSet":
			continue
		}
		pod := file.Spec.Template.Spec
		for i := range file.Spec.Replicas {
			if pod.Containers[0].Image == "patchbay" {
				daemons = append(daemons, started{pod.Containers[0].Args, time.Duration(pod.Grace) * time.Second})
			} else {
				servers = append(servers, file.Metadata.Name+"-"+string(rune('0'+i)))
			}
		}
	}
}

// TestDeployments checks that the examples of several daemons start two of them with flags that there are, on the NATS
// servers that they start too, and give running jobs the time that --drain promises.
func TestDeployments(t *testing.T) {
	for name, read := range map[string]func(*testing.T) ([]started, []string){
		"compose": inCompose, "kubernetes": inKubernetes,
	} {
		daemons, servers := read(t)
		if len(daemons) != 2 || len(servers) != 3 {
			t.Errorf("%s: %d daemons on %v, want 2 on 3 servers", name, len(daemons), servers)
		}
		slices.Sort(servers)
		for _, d := range daemons {
			if len(d.args) == 0 || d.args[0] != "serve" {
				t.Fatalf("%s: %v is not serve", name, d.args)
			}
			cmd := serveCmd("test")
			if err := cmd.ParseFlags(d.args[1:]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			var hosts []string
			for _, m := range regexp.MustCompile(`nats://([^:.]+)`).FindAllStringSubmatch(cmd.Flag("nats").Value.String(), -1) {
				hosts = append(hosts, m[1])
			}
			if !slices.Equal(hosts, servers) {
				t.Errorf("%s: --nats has %v, the servers are %v", name, hosts, servers)
			}
			if drain, err := cmd.Flags().GetDuration("drain"); err != nil || drain >= d.grace {
				t.Errorf("%s: killed %s after SIGTERM, --drain is %s (%v)", name, d.grace, drain, err)
			}
		}
	}
}

// TestUnitAndItsSettings checks that the settings of the packages are right, and that systemd waits for running jobs.
func TestUnitAndItsSettings(t *testing.T) {
	bare(t)
	unit, err := os.ReadFile("../tools/release/package/patchbay.service")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../tools/release/package/patchbay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// folders of an installation, which are not here
	text = regexp.MustCompile(`/(var/lib|usr/share)/patchbay(/examples)?`).ReplaceAll(text, []byte("../examples"))
	text = bytes.ReplaceAll(text, []byte("../examples/models"), []byte("../examples/demo"))
	output := t.TempDir()
	text = bytes.ReplaceAll(text, []byte("../examples/output"), []byte(output))
	path := settingsFile(t, string(text))
	if out, err := command(t, "config", "check", path); err != nil {
		t.Errorf("config check: %v\n%s", err, out)
	}
	start := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/patchbay serve --config (/etc/patchbay/patchbay\.yaml)$`)
	wait := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`).FindSubmatch(unit)
	if !start.Match(unit) || wait == nil {
		t.Fatalf("the unit does not start serve with its settings, or has no TimeoutStopSec:\n%s", unit)
	}
	drain, err := time.ParseDuration(strings.Fields(shown(t, "--config", path)["drain"])[0])
	if stop, e := time.ParseDuration(string(wait[1]) + "s"); err != nil || e != nil || drain >= stop {
		t.Errorf("killed %s after SIGTERM, drain is %s (%v, %v)", stop, drain, err, e)
	}
}
