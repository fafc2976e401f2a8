package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"patchbay/node/pyjson"
)

// cookie is the name of the cookie and of the parameter that carry the token.
const cookie = "patchbay_token"

// guard refuses requests of other web pages, of names that were bound to this machine to get around that, and of those
// who lack the token. What it logs never has the query, in which a token may be.
func (h *HTTP) guard(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	for _, o := range h.cfg.Origins {
		_ = cross.AddTrustedOrigin(o) // checked with the settings
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trusted := slices.Contains(h.cfg.Origins, r.Header.Get("Origin"))
		refuse := func(status int, why string) {
			h.cfg.Log.Debug().Str("method", r.Method).Str("path", r.URL.Path).Int("status", status).Msg(why)
			if strings.HasPrefix(r.URL.Path, "/v1/") { // its clients read nothing else
				h.send(w, status, pyjson.NewObject("error", pyjson.NewObject("message", why, "type", "invalid_request_error",
					"param", nil, "code", map[int]any{http.StatusUnauthorized: "invalid_api_key"}[status])))
				return
			}
			http.Error(w, why, status)
		}
		head := w.Header()
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "same-origin") // with less, browsers send forms from no origin
		head.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'self'")
		switch {
		case h.cfg.Token == "" && !local(r.Host):
			refuse(http.StatusForbidden, "this Host is not served: use localhost or 127.0.0.1, or set a token")
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
		if !h.admits(r) && !h.isOpen(r) {
			head.Set("WWW-Authenticate", `Bearer realm="patchbay"`)
			refuse(http.StatusUnauthorized, "a token is needed: Authorization: Bearer TOKEN")
			return
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

// admits reports whether a request has the token.
func (h *HTTP) admits(r *http.Request) bool {
	if h.cfg.Token == "" {
		return true
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

// isOpen reports whether a route is answered without a token.
func (h *HTTP) isOpen(r *http.Request) bool {
	return slices.ContainsFunc(h.routes(), func(row route) bool {
		return row.open && row.method == r.Method && row.path == r.URL.Path
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
