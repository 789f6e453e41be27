// Server-sent events, read from text as it arrives.

export interface SseMessage {
  event: string;
  data: string;
  id: string | undefined;
}

/** Puts messages together from pieces of text, wherever those are cut. */
export class SseParser {
  private rest = "";
  private event = "";
  private data: string[] = [];
  private id: string | undefined;

  /** The messages that are whole now. */
  push(text: string): SseMessage[] {
    const messages: SseMessage[] = [];
    this.rest += text;
    for (;;) {
      const end = this.rest.search(/\r\n|\n|\r(?!$)/);
      if (end < 0) return messages;
      const line = this.rest.slice(0, end);
      this.rest = this.rest.slice(end + (this.rest.startsWith("\r\n", end) ? 2 : 1));
      const message = this.line(line);
      if (message) messages.push(message);
    }
  }

  private line(line: string): SseMessage | undefined {
    if (line === "") {
      const message = this.data.length > 0 ? { event: this.event || "message", data: this.data.join("\n"), id: this.id } : undefined;
      this.event = "";
      this.data = [];
      this.id = undefined;
      return message;
    }
    if (line.startsWith(":")) return undefined;
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.event = value;
    else if (name === "data") this.data.push(value);
    else if (name === "id") this.id = value;
    return undefined;
  }
}
