// Package files finds models and inputs by the names that workflows use, inside the roots or over trusted links, opens
// their headers, and puts outputs into the output folder under ComfyUI's next free names. It knows no node and no
// network.
package files
