// A Worker Adapter in another language: groups are processes of scaler_cluster.
// node adapter.mjs SCHEDULER PROGRAM tell|ignore MOST
import { spawn } from "node:child_process";
import { createServer } from "node:http";

const [scheduler, program, manner, most] = process.argv.slice(2);
const groups = new Map();

function start(request) {
  if (groups.size >= Number(most)) return [429, { error: "all workers are running" }];
  const id = `node-${groups.size}-${Date.now()}`;
  const told = manner === "tell" ? request.metadata?.environment : {};
  const child = spawn(program, [scheduler, "--num-of-workers", "1"], { env: { ...process.env, ...told }, stdio: "ignore" });
  child.on("exit", () => groups.delete(id));
  groups.set(id, child);
  return [200, { status: "started", worker_group_id: id, worker_ids: [] }];
}

function shutdown(request) {
  const child = groups.get(request.worker_group_id);
  if (!child) return [404, { error: "no such group" }];
  child.kill("SIGTERM");
  return [200, { status: "stopped", worker_group_id: request.worker_group_id }];
}

const server = createServer((incoming, outgoing) => {
  let text = "";
  incoming.on("data", (part) => (text += part));
  incoming.on("end", () => {
    const request = JSON.parse(text);
    console.log(request.action);
    const action = { start_worker_group: start, shutdown_worker_group: shutdown }[request.action];
    const [status, body] = action ? action(request) : [400, { error: "unknown action" }];
    outgoing.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
  });
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
process.on("SIGTERM", () => { groups.forEach((child) => child.kill("SIGTERM")); process.exit(0); });
