package rights

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// Role is what a user of a NATS server may do with Patchbay.
type Role string

// The roles.
const (
	RoleClient Role = "client" // sends jobs and reads their events and results
	RoleDaemon Role = "daemon" // answers, and manages the streams and buckets
	RoleAdmin  Role = "admin"  // a client that also sees the service and the streams, frees caches, and may purge
)

// Roles returns the roles, the one with the fewest rights first.
func Roles() []Role { return []Role{RoleClient, RoleAdmin, RoleDaemon} }

// Rights are the subjects that a user may publish and subscribe to; the server refuses all others.
type Rights struct{ Publish, Subscribe []string }

// Permissions returns the minimal rights that a role needs. user is the name (or the public key) by which the server
// knows the user: replies to it come on subjects that nobody else may read. A client has no rights on JetStream at
// all: a consumer delivers to the subject that its creator names, and the acknowledgment of a write to a stream goes
// to the subject that the publisher names, both past all permissions. Nor has it any on $SRV, where the answer goes to
// whatever subject the request names (see wire.Answerable).
func Permissions(role Role, user string) Rights {
	r := Rights{
		Publish: append(verbSubjects(false), message.PreviewSubject("*")+".on", message.BlobRoot+"*.get",
			message.BlobRoot+"*.put.*",
			message.BlobRoot+"*.ack.*"),
		Subscribe: []string{wire.InboxOf(user) + ".>", wire.SubjectRoot + "events.>", message.PreviewSubject("*")},
	}
	switch role {
	case RoleClient:
		return r
	case RoleAdmin:
		r.Publish = append(append(r.Publish, verbSubjects(true)...), "$SRV.>", "$JS.API.INFO", "$JS.API.STREAM.NAMES",
			"$JS.API.STREAM.LIST")
		r.Subscribe = append(r.Subscribe, message.DeadRoot+"*", "$JS.EVENT.ADVISORY.>")
		for _, s := range message.Streams() {
			r.Publish = append(r.Publish, "$JS.API.CONSUMER.NAMES."+s, "$JS.API.CONSUMER.LIST."+s)
			r.Publish = append(r.Publish, streamSubjects(s)...)
		}
		return r
	}
	r = Rights{
		Publish:   []string{wire.SubjectRoot + ">", "_INBOX.>", "$JS.API.INFO", "$JS.API.STREAM.NAMES"},
		Subscribe: []string{wire.SubjectRoot + ">", "$SRV.>", wire.InboxOf(user) + ".>"},
	}
	for _, s := range message.Streams() {
		r.Publish = append(r.Publish, "$JS.API.STREAM.CREATE."+s, "$JS.API.STREAM.UPDATE."+s)
		r.Publish = append(r.Publish, streamSubjects(s)...)
		if bucket, ok := strings.CutPrefix(s, "KV_"); ok {
			r.Publish = append(r.Publish, "$KV."+bucket+".>")
		}
	}
	return r
}

// streamSubjects returns the subjects on which daemon and administrator read, consume and purge a stream.
func streamSubjects(s string) []string {
	return []string{
		"$JS.API.STREAM.INFO." + s, "$JS.API.STREAM.PURGE." + s, "$JS.API.STREAM.MSG.GET." + s,
		"$JS.API.STREAM.MSG.DELETE." + s, "$JS.API.DIRECT.GET." + s, "$JS.API.DIRECT.GET." + s + ".>",
		"$JS.API.CONSUMER.CREATE." + s + ".>", "$JS.API.CONSUMER.INFO." + s + ".>",
		"$JS.API.CONSUMER.DELETE." + s + ".>", "$JS.API.CONSUMER.MSG.NEXT." + s + ".>",
		"$JS.ACK." + s + ".>", "$JS.FC." + s + ".>",
	}
}

// verbSubjects returns the subjects of the verbs open to every client, or of those for administrators only.
func verbSubjects(admin bool) []string {
	var out []string
	for _, v := range message.Verbs() {
		if v.Admin == admin {
			out = append(out, v.Subject("*"))
		}
	}
	return out
}

// User is one line of a nats-server configuration.
type User struct {
	Role Role
	Name string // of a user with a password, or the public key of an NKey
}

// ParseUsers reads "client=alice,daemon=UAB...": roles and names of users.
func ParseUsers(text string) ([]User, error) {
	var out []User
	for item := range strings.SplitSeq(text, ",") {
		role, name, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok || !slices.Contains(Roles(), Role(role)) {
			return nil, fmt.Errorf("user %q: want client=NAME, daemon=NAME or admin=NAME, separated by commas", item)
		}
		if !wire.ValidID(name) {
			return nil, fmt.Errorf("user %q: a name is 1 to 64 of A-Z a-z 0-9 _ -, or the public key of an NKey", name)
		}
		if slices.ContainsFunc(out, func(u User) bool { return u.Name == name }) {
			return nil, fmt.Errorf("user %q is there twice", name)
		}
		out = append(out, User{Role(role), name})
	}
	return out, nil
}

// ServerConfig returns the authorization block of a nats-server configuration for these users. A password is the
// variable PATCHBAY_PASSWORD_<NAME>, which nats-server takes from its environment and without which it does not start.
func ServerConfig(users []User) string {
	var b strings.Builder
	b.WriteString("authorization {\n  users = [\n")
	for _, u := range users {
		fmt.Fprintf(&b, "    # %s: %s\n", u.Role, roleText(u.Role))
		if nkeys.IsValidPublicUserKey(u.Name) {
			fmt.Fprintf(&b, "    { nkey: %q\n", u.Name)
		} else {
			fmt.Fprintf(&b, "    { user: %q, password: $%s\n", u.Name, PasswordVariable(u.Name))
		}
		r := Permissions(u.Role, u.Name)
		b.WriteString("      permissions: {\n")
		for _, list := range []struct {
			name     string
			subjects []string
		}{{"publish", r.Publish}, {"subscribe", r.Subscribe}} {
			fmt.Fprintf(&b, "        %s: { allow: [\n", list.name)
			for _, s := range list.subjects {
				fmt.Fprintf(&b, "          %q\n", s)
			}
			b.WriteString("        ] }\n")
		}
		b.WriteString("      } }\n")
	}
	b.WriteString("  ]\n}\n")
	return b.String()
}

// PasswordVariable returns the name of the environment variable with the password of a user of ServerConfig.
func PasswordVariable(name string) string {
	return "PATCHBAY_PASSWORD_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func roleText(r Role) string {
	switch r {
	case RoleClient:
		return "sends jobs, follows and cancels them; sees the events of all jobs"
	case RoleAdmin:
		return "a client that also sees the service and its streams, and may purge"
	}
	return "`patchbay serve` itself"
}
