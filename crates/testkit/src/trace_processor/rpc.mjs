// Carries the RPC of Perfetto's trace processor between stdin and stdout and the WebAssembly that the Perfetto UI is
// delivered with: node rpc.mjs FOLDER, where engine_bundle.js is. What it prints itself goes to stderr.
import { readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const { process } = globalThis;
const folder = process.argv[2];
const port = {
  onmessage: null,
  postMessage(bytes) {
    for (let at = 0; at < bytes.length; ) {
      try {
        at += writeSync(1, bytes, at);
      } catch (e) {
        if (e.code !== "EAGAIN") throw e;
      }
    }
  },
};
console.log = console.info = console.warn = console.error;

// The bundle believes that it runs in a browser's worker.
globalThis.self = globalThis;
globalThis.location = { href: "http://localhost/", protocol: "http:", host: "localhost" };
globalThis.WorkerGlobalScope = class {};
globalThis.importScripts = () => {};
globalThis.XMLHttpRequest = class {
  open(_method, name) {
    this.name = name;
  }
  send() {
    this.response = readFileSync(join(folder, this.name));
  }
};
globalThis.process = undefined;
vm.runInThisContext(readFileSync(join(folder, "engine_bundle.js"), "utf8"));
globalThis.process = process;
self.onmessage({ data: port });
process.stdin.on("data", (bytes) => port.onmessage({ data: new Uint8Array(bytes) }));
