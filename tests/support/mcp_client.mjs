// A client of MCP on the official TypeScript SDK, for tests: `node mcp_client.mjs <folder of node_modules> <package> <url>`.
// It lists the tools, calls them, and prints what it got as one line of JSON.
import { createRequire } from "node:module";

const [, , folder, sdk, url] = process.argv;
const require = createRequire(`${folder}/client.js`);
const earlier = sdk === "@modelcontextprotocol/sdk";
const { Client } = require(earlier ? `${sdk}/client/index.js` : sdk);
const { StreamableHTTPClientTransport } = require(earlier ? `${sdk}/client/streamableHttp.js` : sdk);

const client = new Client({ name: "test", version: "1" }, earlier ? {} : { versionNegotiation: { mode: "auto" } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { tools } = await client.listTools();
const progress = [];
// The SDK validates structured content against the output schema of the tool.
const options = { onprogress: (each) => progress.push(each.message) };
const call = { name: "retrieve", arguments: { query: "q", k: 2 } };
const found = earlier ? await client.callTool(call, undefined, options) : await client.callTool(call, options);
const searched = await client.callTool({ name: "search", arguments: { query: "q" } });
const id = searched.structuredContent.results[0].id;
const fetched = await client.callTool({ name: "fetch", arguments: { id } });
const engines = await client.callTool({ name: "list_engines", arguments: {} });
const link = found.content.find((block) => block.type === "resource_link");
const read = await client.readResource({ uri: link.uri });
const wrong = await client.callTool({ name: "search", arguments: {} });
const protocol = client.getNegotiatedProtocolVersion?.() ?? null;
await client.close();
console.log(JSON.stringify({
  tools: tools.map((tool) => tool.name),
  protocol,
  hits: found.structuredContent.hits.map((hit) => hit.id),
  progress,
  text: fetched.structuredContent.text,
  engines: engines.structuredContent.engines.map((engine) => engine.id),
  read: read.contents[0].text,
  wrong: wrong.isError,
}));
