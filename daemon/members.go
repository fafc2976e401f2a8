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

	"github.com/rs/zerolog"

	"patchbay/ipc/members"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/parallel/remote"
)

// Membership is the group that a host joins.
type Membership struct {
	Group   string // empty: none
	Address string // HOST:PORT, where others reach the host; empty: that of its listener
}

// follow keeps a file up to date with the hosts that have joined the group of --hosts, and makes cfg.Hosts name that
// file instead of the group, because workers read lists. Hosts of another version are logged and left out.
func (d *daemon) follow(ctx context.Context, url string) error {
	name, ok := groupOf(d.cfg.Hosts)
	if !ok {
		return nil
	}
	mc := members.Config{URL: url, Access: d.access(), Group: name}
	if d.embedded != nil {
		mc.InProcess = d.embedded.InProcess()
	}
	group, err := members.Join(ctx, mc)
	if err != nil {
		return fmt.Errorf("--hosts %s: %w", d.cfg.Hosts, err)
	}
	file := filepath.Join(d.cfg.Store, "hosts-"+name)
	if err := os.WriteFile(file, nil, 0o600); err != nil { // hosts of an earlier run may be gone
		group.Close()
		return err
	}
	d.cfg.Hosts = "@" + file
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		group.Follow(ctx, func(now []members.Member) {
			if err := d.write(file, now); err != nil {
				d.log.Error().Err(err).Msg("the list of hosts is not written")
			}
		})
	}()
	d.unfollow = func() { stop(); <-ended; group.Close() }
	return nil
}

// write writes the list that workers read, and logs which hosts are left out.
func (d *daemon) write(file string, now []members.Member) error {
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
		d.log.Info().Str("host", m.Address).Str("devices", m.Devices).Int("ranks", m.Ranks).Msg("a host is in the group")
		fmt.Fprintln(&list, m.Address)
	}
	return replace(file, []byte(list.String()))
}

// mostFiles bounds the files that an entry of a group names: the entry must fit into a message.
const mostFiles = 4096

// fileDigests returns a function that lists the model files that ranks load from an index, by KIND/NAME, with their
// digests.
func fileDigests(x *files.Index) func() map[string]string {
	return func() map[string]string {
		out := map[string]string{}
		for _, f := range x.Models(files.KindDiffusion, files.KindGGUF, files.KindCheckpoint, files.KindLora) {
			if len(out) < mostFiles && f.Hash != "" {
				out[f.Kind+"/"+f.Name] = digest(f)
			}
		}
		return out
	}
}

// digest returns the size of a file and the start of the hash of its header.
func digest(f files.NeededFile) string { return fmt.Sprintf("%d %.16s", f.Bytes, f.Hash) }

// others returns the files of a member, by KIND/NAME, sorted, that differ from the files of those names here.
func (d *daemon) others(m members.Member) (out []string) {
	for name, theirs := range m.Files {
		kind, file, _ := strings.Cut(name, "/")
		if local, ok := d.place.Index.Find(kind, file); ok && local.Hash != "" && digest(local) != theirs {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// join announces a host that listens on l as a member of its group, if there is one, until leave is called.
func (m *Membership) join(ctx context.Context, cfg *Config, l net.Listener, ranks int, log zerolog.Logger,
) (leave func(), err error) {
	if m.Group == "" {
		return func() {}, nil
	}
	member := members.Member{Address: m.Address, Version: cfg.Version, Devices: cfg.Devices, Ranks: ranks}
	if member.Address == "" {
		at := l.Addr().(*net.TCPAddr)
		name := at.IP.String()
		if at.IP.IsUnspecified() {
			if name, err = os.Hostname(); err != nil {
				return nil, fmt.Errorf("--address is missing, and this machine has no name: %w", err)
			}
		}
		member.Address = net.JoinHostPort(name, strconv.Itoa(at.Port))
	}
	group, err := members.Join(ctx, members.Config{URL: cfg.NATS, Access: cfg.Access, Group: m.Group})
	if err != nil {
		return nil, fmt.Errorf("--join %s: %w", m.Group, err)
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		group.Announce(ctx, member, fileDigests(files.NewIndex(cfg.Roots())), func(err error) {
			if err != nil {
				log.Warn().Err(err).Str("nats", wire.Redact(cfg.NATS)).Msg("this host cannot announce itself to its group")
				return
			}
			log.Info().Msg("this host announces itself to its group again")
		})
	}()
	return func() { stop(); <-ended; group.Close() }, nil
}
