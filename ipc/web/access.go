package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"patchbay/ipc/broker"
	"patchbay/ipc/message"
	"patchbay/node/pyjson"
)

// cookie is the name of the cookie and of the parameter that carry the token.
const cookie = "patchbay_token"

// guard refuses requests of other web pages, of names that were bound to this machine to get around that, and of those
// who are not let in. What users may do is in the table of routes.
func (h *HTTP) guard(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	for _, o := range h.cfg.Origins {
		_ = cross.AddTrustedOrigin(o) // checked with the settings
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trusted := slices.Contains(h.cfg.Origins, r.Header.Get("Origin"))
		refuse := func(status int, why string) { h.refuse(w, r, status, why) }
		head := w.Header()
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "same-origin") // with less, browsers send forms from no origin
		head.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'self'")
		switch {
		case h.cfg.asksNobody() && !local(r.Host):
			refuse(http.StatusForbidden, "this Host is not served: use localhost or 127.0.0.1, or set a token or users")
			return
		case !trusted && (foreign(r) || cross.Check(r) != nil):
			refuse(http.StatusForbidden, "requests of other web pages are refused; --http-origin allows one")
			return
		}
		if trusted {
			head.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
			head.Set("Access-Control-Allow-Credentials", "true")
			head.Set("Access-Control-Allow-Methods", "POST, GET, DELETE, PUT, OPTIONS, PATCH")
			head.Set("Access-Control-Allow-Headers", "Content-Type, Authorization")
			head.Set("Vary", "Origin")
		}
		if r.Method == http.MethodOptions {
			return
		}
		login, ok := h.admits(r)
		if !ok && !h.isOpen(r) {
			refuse(http.StatusUnauthorized, h.challenge(head))
			return
		}
		if login != nil {
			r = r.WithContext(context.WithValue(r.Context(), loginKey{}, login))
		}
		if q := r.URL.Query(); h.cfg.Token != "" && q.Has(cookie) && (r.URL.Path == "/" || r.URL.Path == "/patchbay") {
			http.SetCookie(w, &http.Cookie{
				Name: cookie, Value: q.Get(cookie), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
				Secure: r.TLS != nil,
			})
			http.Redirect(w, r, r.URL.Path, http.StatusSeeOther) // the address with the token is not kept by the browser
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refuse answers a request that is not let in. What it logs never has the query, in which a token may be.
func (h *HTTP) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	h.cfg.Log.Debug().Str("method", r.Method).Str("path", r.URL.Path).Int("status", status).Msg(why)
	if strings.HasPrefix(r.URL.Path, "/v1/") { // its clients read nothing else
		h.send(w, status, pyjson.NewObject("error", pyjson.NewObject("message", why, "type", "invalid_request_error",
			"param", nil, "code", map[int]any{http.StatusUnauthorized: "invalid_api_key"}[status])))
		return
	}
	http.Error(w, why, status)
}

// asksNobody reports whether everybody who can reach the address may do everything.
func (c *Config) asksNobody() bool { return c.Token == "" && c.Logins == nil }

// challenge says in the header how to get in, by which a browser asks for name and password, and returns it in words.
func (h *HTTP) challenge(head http.Header) string {
	var ways []string
	if h.cfg.Logins != nil {
		head.Add("WWW-Authenticate", `Basic realm="patchbay", charset="UTF-8"`)
		ways = append(ways, "name and password of a user (basic authentication)")
	}
	if h.cfg.Token != "" {
		head.Add("WWW-Authenticate", `Bearer realm="patchbay"`)
		ways = append(ways, "a token (Authorization: Bearer TOKEN)")
	}
	return "needed: " + strings.Join(ways, ", or ")
}

// admits reports whether a request comes with the token or from a user, who is nil for the token.
func (h *HTTP) admits(r *http.Request) (*broker.Login, bool) {
	if h.cfg.asksNobody() || h.hasToken(r) {
		return nil, true
	}
	if name, password, ok := r.BasicAuth(); ok && h.cfg.Logins != nil {
		login := h.cfg.Logins(name, password)
		return login, login != nil
	}
	return nil, false
}

// hasToken reports whether a request has the token.
func (h *HTTP) hasToken(r *http.Request) bool {
	if h.cfg.Token == "" {
		return false
	}
	var given []string
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		given = append(given, strings.TrimSpace(token))
	}
	if c, err := r.Cookie(cookie); err == nil {
		given = append(given, c.Value)
	}
	if token := r.URL.Query().Get(cookie); token != "" {
		given = append(given, token)
	}
	want := sha256.Sum256([]byte(h.cfg.Token))
	return slices.ContainsFunc(given, func(token string) bool {
		sum := sha256.Sum256([]byte(token))
		return subtle.ConstantTimeCompare(sum[:], want[:]) == 1
	})
}

// loginKey is the key of the user in the context of a request.
type loginKey struct{}

// from returns the user that a request is of; "": users are not told apart.
func from(r *http.Request) string {
	if login, ok := r.Context().Value(loginKey{}).(*broker.Login); ok {
		return login.Name
	}
	return ""
}

// may reports whether who sends a request may do what a verb does, of any job: a user must have the right to it that
// NATS asks for, others have all rights.
func may(ctx context.Context, verb string) bool {
	login, ok := ctx.Value(loginKey{}).(*broker.Login)
	return !ok || login.May(message.VerbSubject(verb, "*"))
}

// lacks says which right is missing.
func lacks(r *http.Request, verb string) string {
	return "this needs the right to " + message.VerbSubject(verb, "*") + ", which user " + from(r) + " lacks"
}

// isOpen reports whether a route is answered to everybody.
func (h *HTTP) isOpen(r *http.Request) bool {
	method := r.Method
	if method == http.MethodHead { // which a route of GET answers too
		method = http.MethodGet
	}
	return slices.ContainsFunc(h.routes(), func(row route) bool {
		return row.open && row.method == method && row.path == r.URL.Path
	})
}

// foreign reports whether a browser says that another site's page makes the request, also one that only reads.
func foreign(r *http.Request) bool {
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(u.Host, r.Host)
}

// local reports whether a Host header names this machine by a name that nobody else can give it.
func local(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}
