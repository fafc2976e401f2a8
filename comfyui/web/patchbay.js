// Patchbay in the editor: settings, and a command that puts Patchbay's loaders in the place of ComfyUI's.
import { app } from "../../scripts/app.js";

const SWAPS = { UNETLoader: "PatchbayUNETLoader", CheckpointLoaderSimple: "PatchbayCheckpointLoader", ModelPatchLoader: "PatchbayModelPatchLoader" };

/** Every list of nodes in a workflow: its own, and those of its subgraph definitions. */
function* lists(workflow) {
  yield workflow.nodes ?? [];
  for (const inner of workflow.definitions?.subgraphs ?? []) yield inner.nodes ?? [];
}

/** Renames the loaders of a serialized workflow. Ids and links stay, so what points at them (subgraph inputs, shown widgets) stays too. */
export function swap(workflow, back = false) {
  const names = back ? Object.fromEntries(Object.entries(SWAPS).map(([a, b]) => [b, a])) : SWAPS;
  const done = { swapped: 0, skipped: [] };
  for (const nodes of lists(workflow)) {
    for (const node of nodes) {
      const to = names[node.type];
      if (!to) continue;
      const dtype = node.type === "UNETLoader" ? node.widgets_values?.[1] : "default";
      if (!back && dtype !== undefined && dtype !== "default") {
        done.skipped.push(`${node.title ?? node.type} #${node.id}: weight_dtype ${dtype} (Patchbay computes in the type of the file)`);
        continue;
      }
      node.type = to;
      if (node.properties?.["Node name for S&R"]) node.properties["Node name for S&R"] = to;
      if (back && node.widgets_values) node.widgets_values = node.widgets_values.slice(0, to === "UNETLoader" ? 2 : 1);
      done.swapped++;
    }
  }
  return done;
}

function say(text, severity) {
  const toast = app.extensionManager?.toast;
  if (toast?.add) toast.add({ severity, summary: "Patchbay", detail: text, life: 8000 });
  else console.log("Patchbay:", text);
}

async function swapHere(back) {
  const graph = app.rootGraph ?? app.graph;
  const workflow = graph.serialize();
  const done = swap(workflow, back);
  if (done.swapped) await app.loadGraphData(workflow, true, false, app.extensionManager?.workflow?.activeWorkflow ?? null);
  const what = done.swapped === 1 ? "1 loader" : `${done.swapped} loaders`;
  say([done.swapped ? `${what} swapped` : "there is no loader to swap", ...done.skipped].join("; "), done.skipped.length ? "warn" : "info");
}

const COMMANDS = [
  { id: "Patchbay.SwapLoaders", label: "Swap loaders for Patchbay", icon: "pi pi-share-alt", function: () => swapHere(false) },
  { id: "Patchbay.SwapLoadersBack", label: "Swap Patchbay's loaders back", icon: "pi pi-undo", function: () => swapHere(true) },
];
const items = () => COMMANDS.map((c) => ({ content: c.label, callback: c.function }));

const extension = {
  name: "Patchbay",
  commands: COMMANDS,
  menuCommands: [{ path: ["Extensions", "Patchbay"], commands: COMMANDS.map((c) => c.id) }],
  settings: [
    {
      id: "Patchbay.Daemon",
      name: "Daemon: socket file or NATS URL; start runs the installed program; empty is the socket of this user's daemon",
      type: "text",
      defaultValue: "",
    },
    { id: "Patchbay.Unload", name: "Unload ComfyUI's own models before a run: the daemon shares the device", type: "boolean", defaultValue: false },
  ],
  getCanvasMenuItems: () => [null, ...items()],
};

// Editors before 1.32 or so ask the canvas itself for its menu.
const canvas = globalThis.LGraphCanvas?.prototype;
if (canvas?.getCanvasMenuOptions && !app.collectCanvasMenuItems) {
  const before = canvas.getCanvasMenuOptions;
  canvas.getCanvasMenuOptions = function (...args) {
    return [...before.apply(this, args), null, ...items()];
  };
  delete extension.getCanvasMenuItems;
}

app.registerExtension(extension);
