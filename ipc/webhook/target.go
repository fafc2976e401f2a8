package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"patchbay/fault"
)

// ParseSecret reads a secret as Standard Webhooks writes it: whsec_ and 24 to 64 bytes in base64.
func ParseSecret(text string) ([]byte, error) {
	body, ok := strings.CutPrefix(strings.TrimSpace(text), "whsec_")
	secret, err := base64.StdEncoding.DecodeString(body)
	if err != nil || !ok || len(secret) < 24 || len(secret) > 64 {
		return nil, errors.New("want whsec_ and 24 to 64 random bytes in base64, as from " +
			"`echo whsec_$(head -c 32 /dev/urandom | base64)`")
	}
	return secret, nil
}

// Check returns why a URL may not be reported to, nil if it may. A name is looked up only when there is something to
// report, see dial.
func (s *Sender) Check(text string) *fault.Error {
	u, err := url.Parse(text)
	if err != nil {
		return refused("it is no URL")
	}
	if len(s.cfg.Hosts) > 0 {
		if !slices.Contains(s.cfg.Hosts, u.Host) && !slices.Contains(s.cfg.Hosts, u.Hostname()) {
			e := refused("host %s is not allowed here; there are %s", u.Host, fault.List(s.cfg.Hosts))
			e.Extra = map[string]any{"allowed": s.cfg.Hosts}
			return e
		}
		return nil
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if err == nil && !public(ip) || strings.EqualFold(u.Hostname(), "localhost") {
		return refused("%s is not public; serve --webhook-host allows it", u.Host)
	}
	return nil
}

func refused(format string, args ...any) *fault.Error {
	return fault.Named(fault.BadRequest, "webhook", format, args...)
}

// reserved are addresses that are in no private range by name, but not public either.
func reserved() []netip.Prefix {
	var out []netip.Prefix
	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
		"240.0.0.0/4", "64:ff9b::/96", "64:ff9b:1::/48", "2001:db8::/32", "2002::/16", "fec0::/10",
	} {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// public reports whether an address is one that everybody can reach.
func public(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return ip.IsGlobalUnicast() && !ip.IsPrivate() &&
		!slices.ContainsFunc(reserved(), func(p netip.Prefix) bool { return p.Contains(ip) })
}

// dial refuses addresses that are not public, whatever name they were looked up by.
func dial(_, address string, _ syscall.RawConn) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !public(ip) {
		return fmt.Errorf("%s is not public; serve --webhook-host allows its host", host)
	}
	return nil
}
