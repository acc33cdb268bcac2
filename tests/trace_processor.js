// Perfetto's trace processor (WebAssembly, as its UI runs it) on stdin and stdout: bytes of its RPC stream.
// usage: node trace_processor.js FOLDER_OF_THE_UI/engine_bundle.js
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const { stdin, stdout } = process;
const bundle = path.resolve(process.argv[2]);

// The bundle is a web worker's script: give it what it uses of one, and hide that this is node.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = Object;
globalThis.location = { href: "file://" + bundle };
globalThis.XMLHttpRequest = class {
  open(method, url) {
    this.file = path.join(path.dirname(bundle), path.basename(url));
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
  }
};
console.log = console.error; // stdout carries bytes only
delete globalThis.process;
vm.runInThisContext(fs.readFileSync(bundle, "utf8"), { filename: bundle });

const port = { postMessage: (bytes) => stdout.write(Buffer.from(bytes)) };
globalThis.onmessage({ data: port });
stdin.on("data", (chunk) => port.onmessage({ data: new Uint8Array(chunk) }));
