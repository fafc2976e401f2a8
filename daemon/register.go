package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"patchbay/ipc/register"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/parallel/remote"
)

// Membership is the cluster that a host joins.
type Membership struct {
	Cluster string // empty: none
	Address string // HOST:PORT, where others reach the host; empty: that of its listener
}

// follow keeps a file up to date with the hosts that have joined the cluster of --hosts, and makes cfg.Hosts name that
// file instead of the cluster, because workers read lists. Hosts of another version are logged and left out.
func (d *daemon) follow(ctx context.Context, url string) error {
	name, ok := clusterOf(d.cfg.Hosts)
	if !ok {
		return nil
	}
	machines, leave := (*register.Register)(nil), func() {}
	if d.store != nil {
		machines = d.store.Machines()
	} else {
		var inside nats.InProcessConnProvider
		if d.embedded != nil {
			inside = d.embedded.InProcess()
		}
		rc := register.Config{Name: register.LeaderName(d.owner), Log: d.log}
		member, err := register.Join(ctx, url, d.access(), inside, rc, nil)
		if err != nil {
			return fmt.Errorf("--hosts %s: %w", d.cfg.Hosts, err)
		}
		machines, leave = member.Register, member.Close
	}
	file := filepath.Join(d.cfg.Store, "hosts-"+name)
	if err := os.WriteFile(file, nil, 0o600); err != nil { // hosts of an earlier run may be gone
		leave()
		return err
	}
	d.cfg.Hosts = "@" + file
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		machines.FollowHosts(ctx, name, func(now []register.Machine) {
			if err := d.write(file, now); err != nil {
				d.log.Error().Err(err).Msg("the list of hosts is not written")
			}
		})
	}()
	d.unfollow = func() { stop(); <-ended; leave() }
	return nil
}

// write writes the list that workers read, and logs which hosts are left out.
func (d *daemon) write(file string, now []register.Machine) error {
	var list strings.Builder
	for _, m := range now {
		if _, err := remote.Address(m.Address, HostPort); err != nil { // it would make the whole list unreadable
			d.log.Warn().Str("host", m.Address).Err(err).Msg("a host whose address cannot be one is left out")
			continue
		}
		if m.Version != d.version {
			d.log.Warn().Str("host", m.Address).Str("version", m.Version).Str("own", d.version).Msg(
				"a host of another version is left out: install the same on both")
			continue
		}
		for _, name := range d.others(m) {
			d.log.Warn().Str("host", m.Address).Str("file", name).Msg(
				"a model file of a host is another one than here: jobs with it are refused there until one is copied")
		}
		d.log.Info().Str("host", m.Address).Str("devices", m.Devices).Int("ranks", m.Ranks).Msg("a host is in the cluster")
		fmt.Fprintln(&list, m.Address)
	}
	return replace(file, []byte(list.String()))
}

// others returns the model files of a host, as KIND/NAME, sorted, that differ from the files of those names here.
func (d *daemon) others(m register.Machine) (out []string) {
	for _, f := range m.Files {
		if local, ok := d.place.Index.Find(f.Kind, f.Name); ok && local.Hash != "" && f.Hash != "" && !local.Same(f) {
			out = append(out, f.Kind+"/"+f.Name)
		}
	}
	slices.Sort(out)
	return out
}

// hostNote returns what a host announces: where it is, and the model files that ranks load.
func (c *Config) hostNote(x *files.Index, address string, ranks int) register.Machine {
	m := register.NewMachine(x, files.KindDiffusion, files.KindGGUF, files.KindCheckpoint, files.KindLora)
	m.Folders = nil // leaders know the files by name
	m.Address, m.Version, m.Devices, m.Ranks = address, c.Version, c.Devices, ranks
	return m
}

// join announces a host that listens on l as a member of its cluster, if there is one, until leave is called.
func (m *Membership) join(ctx context.Context, cfg *Config, l net.Listener, ranks int, log zerolog.Logger,
) (leave func(), err error) {
	if m.Cluster == "" {
		return func() {}, nil
	}
	address := m.Address
	if address == "" {
		at := l.Addr().(*net.TCPAddr)
		name := at.IP.String()
		if at.IP.IsUnspecified() {
			if name, err = os.Hostname(); err != nil {
				return nil, fmt.Errorf("--address is missing, and this machine has no name: %w", err)
			}
		}
		address = net.JoinHostPort(name, strconv.Itoa(at.Port))
	}
	index := files.NewIndex(cfg.Roots())
	member, err := register.Join(ctx, cfg.NATS, cfg.Access, nil, register.Config{
		Name: register.HostName(m.Cluster, address), Log: log,
		Note: func() register.Machine { return cfg.hostNote(index, address, ranks) },
	}, func(err error) {
		if err != nil {
			log.Warn().Err(err).Str("nats", wire.Redact(cfg.NATS)).Msg("this host cannot announce itself to its cluster")
			return
		}
		log.Info().Msg("this host announces itself to its cluster again")
	})
	if err != nil {
		return nil, fmt.Errorf("--join %s: %w", m.Cluster, err)
	}
	return member.Close, nil
}
