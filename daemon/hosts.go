package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"patchbay/ipc/wire"
	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
)

// parseHosts reads --hosts, or the file that it names as @FILE, which has a host a line and # comments.
func parseHosts(text string) ([]string, error) {
	var parts []string
	if path, ok := strings.CutPrefix(text, "@"); ok {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--hosts: %w", err)
		}
		for line := range strings.Lines(string(b)) {
			line, _, _ = strings.Cut(line, "#")
			parts = append(parts, strings.Fields(line)...)
		}
	} else {
		parts = strings.Split(text, ",")
	}
	var out []string
	for _, part := range parts {
		if name, ok := strings.CutPrefix(part, "group:"); ok {
			return nil, fmt.Errorf("--hosts %s: machines join a cluster now: want cluster:%s", text, name)
		}
		if name, devices, ok := strings.Cut(part, ":cuda:"); ok {
			return nil, fmt.Errorf("--hosts %s: the host says what it computes on: want %s here, and `patchbay host --devices "+
				"cuda:%s` there", text, name, devices)
		}
		a, err := remote.Address(strings.TrimSpace(part), HostPort)
		if err != nil {
			return nil, fmt.Errorf("--hosts %s: %w, as in a:%d,b:%d", text, err, HostPort, HostPort)
		}
		if slices.Contains(out, a) {
			return nil, fmt.Errorf("--hosts %s: %s stands there twice", text, a)
		}
		out = append(out, a)
	}
	return out, nil
}

// readKey reads the file with a cluster's key. It returns an error if other users may read the file.
func readKey(path string) (*remote.Key, error) {
	const hint = "`patchbay host --new-key FILE` makes one, for all machines to copy"
	if path == "" {
		return nil, errors.New("--cluster-key is missing: the file with the secret that all hosts share; " + hint)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("--cluster-key: %w; %s", err, hint)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("--cluster-key %s: others may read it (mode %04o): chmod 600 %s", path, mode, path)
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--cluster-key: %w", err)
	}
	k, err := remote.NewKey([]byte(strings.TrimSpace(string(secret))))
	if err != nil {
		return nil, fmt.Errorf("--cluster-key %s: %w; %s", path, err, hint)
	}
	return k, nil
}

// checkHosts returns an error for --hosts that cannot work with the other flags.
func (c *Config) checkHosts() error {
	if c.Hosts == "" {
		return nil
	}
	var err error
	if cluster, ok := clusterOf(c.Hosts); !ok {
		_, err = parseHosts(c.Hosts)
	} else if !wire.ValidID(cluster) {
		err = fmt.Errorf("--hosts %s: the name of a cluster is 1 to 64 of A-Z a-z 0-9 _ -", c.Hosts)
	}
	switch {
	case err != nil:
		return err
	case c.Placement == placementChildren:
		return fmt.Errorf("--hosts %s: ranks run there, --placement children starts them here: want one of them", c.Hosts)
	case c.Transport == transportNCCL && !c.TrustedNetwork:
		return fmt.Errorf("--hosts %s --transport nccl: NCCL neither encrypts nor authenticates what machines exchange: add "+
			"--trusted-network, here and on the hosts, where nobody else is on their network, or want --transport auto", c.Hosts)
	case c.Workers > 1:
		return fmt.Errorf("--hosts %s --workers %d: a host serves one worker", c.Hosts, c.Workers)
	}
	_, err = readKey(c.ClusterKey)
	return err
}

// network returns the machines that --hosts lists now, and how to reach them.
func (c *Config) network() (list []string, n remote.Network, err error) {
	if list, err = parseHosts(c.Hosts); err != nil {
		return nil, n, err
	}
	n.Build, n.Silence = c.Version, c.silence()
	n.Key, err = readKey(c.ClusterKey)
	return list, n, err
}

// newHosts returns the machines of --hosts as a Cluster, which looks for those that are missing.
func (c *Config) newHosts(log zerolog.Logger) (*remote.Cluster, error) {
	last, n, err := c.network()
	if err != nil {
		return nil, err
	}
	roots := c.Roots()
	var mu sync.Mutex
	list := func() []string { // the last one, if the file cannot be read now
		mu.Lock()
		defer mu.Unlock()
		if now, err := parseHosts(c.Hosts); err == nil {
			last = now
		}
		return last
	}
	cluster := remote.NewCluster(n, c.exchange(), list, func(cl *remote.Process) process.Process {
		site := cl.Site()
		log.Info().Stringer("host", cl).Str("rates", hardware.Cluster{}.At(site).Sources()).Msg("ranks run on a host")
		return remoteHost{cl, roots}
	},
		func(address string, err error) {
			if err != nil {
				log.Warn().Str("host", address).Err(err).Msg("a host is not used")
				return
			}
			log.Info().Str("host", address).Msg("a host is used again")
		})
	err = cluster.Keep(filepath.Join(Home(), "networks.json"), func(err error) {
		log.Warn().Err(err).Msg("what hosts have measured of the network cannot be saved")
	})
	if err != nil {
		log.Warn().Err(err).Msg("the saved measurements of the network cannot be read")
	}
	if survey := cluster.Survey(); survey.Places != nil {
		log.Info().Float64("bandwidth", survey.Bandwidth).Float64("latency", survey.Latency).Msg(
			"until hosts are connected to each other, plans use the devices and the network of last time")
	}
	return cluster, nil
}

// Bench connects the machines of --hosts, for measurements between them: all must be there, and serve nobody else.
func (c *Config) Bench() (*remote.Bench, error) {
	err := c.checkHosts()
	if cluster, ok := clusterOf(c.Hosts); ok && err == nil {
		err = fmt.Errorf("--hosts %s: all must be there to be measured: name those of %s, as in a,b:%d, or list them in a "+
			"file, @FILE", c.Hosts, cluster, HostPort)
	}
	if err != nil {
		return nil, &InputError{Err: err}
	}
	list, n, err := c.network()
	if err != nil {
		return nil, &InputError{Err: err}
	}
	return remote.NewBench(n, list, c.exchange())
}
