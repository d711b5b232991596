/** Why calls fail. */

/** An error of the engine; `name` is one of those of section 2.2 of the protocol. */
export class ScalerError extends Error {
  constructor(
    name: string,
    message: string,
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
    this.name = name;
  }
}

/** What the called function raised: `name` is the type of the exception in Python. */
export class RemoteError extends Error {
  constructor(
    name: string,
    message: string,
    /** The traceback from the worker. */
    readonly traceback: string,
  ) {
    super(message);
    this.name = name;
  }
}

/** The call was cancelled. */
export class CancelledError extends Error {
  override readonly name = "CancelledError";
}

interface Described {
  error: string;
  message: string;
  details: Record<string, unknown>;
}

/** The error in the payload of a FAILED outcome. */
export function failure(payload: Uint8Array): ScalerError {
  const { error, message, details } = JSON.parse(Buffer.from(payload).toString()) as Described;
  return new ScalerError(error, message, details);
}

/** The exception in the payload of a RAISED outcome in encoding JSON. */
export function raised(payload: Uint8Array): RemoteError {
  const { error, message, details } = JSON.parse(Buffer.from(payload).toString()) as Described;
  return new RemoteError(error, message, String(details.traceback ?? ""));
}
