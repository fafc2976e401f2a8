// Package web is the carrier that speaks ComfyUI's HTTP and websocket API, as version 0.33.0 does. It turns requests
// into calls of a serve.Service and reads everything else from the table of jobs: nothing below it knows it.
//
// Reading order: web, routes, openapi, access; prompt, queue, past, history, listing; hub, socket, frames; view,
// upload, info; page, page_board, page_job; editor, userdata. Beside it templates is an API of our own, and images that
// of OpenAI, over workflows of the operator.
package web
