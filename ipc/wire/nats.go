package wire

import (
	"strings"

	"github.com/nats-io/nats.go"

	"patchbay/fault"
)

// SubjectRoot is the prefix of every subject of the protocol. The names on NATS never change within v1.
const SubjectRoot = "patchbay.v1."

// DefaultNATS is where daemons listen and clients connect by default.
const DefaultNATS = "nats://127.0.0.1:4222"

// HeaderDaemon names the daemon that sent an event.
const HeaderDaemon = "Patchbay-Daemon"

// HeaderAccept lists the kinds of Ref that the replies to a request may hold.
const HeaderAccept = "Patchbay-Accept"

// EncodingOf tells the encoding of a message by its Content-Type header (any case of its name), or else by its body. An
// empty body counts as JSON: a person typed the request.
func EncodingOf(header nats.Header, data []byte) (Encoding, error) {
	for k, v := range header {
		if !strings.EqualFold(k, "Content-Type") || len(v) == 0 {
			continue
		}
		switch kind, _, _ := strings.Cut(strings.ToLower(v[0]), ";"); strings.TrimSpace(kind) {
		case "application/json":
			return JSON, nil
		case "application/msgpack", "application/x-msgpack", "application/vnd.msgpack":
			return Msgpack, nil
		}
	}
	if len(data) == 0 {
		return JSON, nil
	}
	enc, ok := Sniff(data)
	if !ok {
		return JSON, fault.New(fault.Unsupported, "the body is neither a JSON object nor a msgpack map")
	}
	return enc, nil
}

// AcceptsStream reports whether the replies to a request with this header may hold a Ref of kind RefStream.
func AcceptsStream(header nats.Header) bool {
	for kind := range strings.SplitSeq(header.Get(HeaderAccept), ",") {
		if strings.TrimSpace(kind) == RefStream {
			return true
		}
	}
	return false
}

// LastToken returns what follows the last dot of a subject.
func LastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// Answerable reports whether a daemon may send to a reply subject that a client chose. The daemon has rights that
// clients lack: a request must not make it write to streams, records or other clients' requests by naming those as its
// reply subject.
func Answerable(reply string) bool {
	return !strings.HasPrefix(reply, "$") && !strings.HasPrefix(reply, SubjectRoot)
}

// InboxOf returns the prefix of the reply subjects of a user, which no other user has a right to (rights.Permissions).
// Users whose name cannot be a token of a subject have the common prefix.
func InboxOf(user string) string {
	if !ValidID(user) {
		return nats.InboxPrefix[:len(nats.InboxPrefix)-1]
	}
	return nats.InboxPrefix + user
}

// SenderOf returns the user that a reply subject belongs to, or "" if the subject is random and does not tell.
func SenderOf(reply string) string {
	rest, ok := strings.CutPrefix(reply, nats.InboxPrefix)
	user, rest, more := strings.Cut(rest, ".")
	if !ok || !more || rest == "" || len(user) == randomInbox {
		return ""
	}
	return user
}

// randomInbox is the length of the random token of a default reply subject.
const randomInbox = 22

// Redact removes user names, passwords and tokens from a URL, which may lack its scheme. Of several URLs, separated by
// commas, it leaves those from the last one that has any: a comma before may be part of a password.
func Redact(url string) string {
	at := strings.LastIndexByte(url, '@')
	if at < 0 {
		return url
	}
	scheme, _, ok := strings.Cut(url[:at], "://")
	if !ok {
		return url[at+1:]
	}
	return scheme + "://" + url[at+1:]
}
