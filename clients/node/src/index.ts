export { Client, type Call, type CallOptions, type ClientOptions } from "./client.js";
export { CancelledError, RemoteError, ScalerError } from "./errors.js";
