// A certified OpenID Connect provider on a free port. It reads its client from the arguments, and prints its address.
// `PUT /SUBJECT` sets the claims of a person, who logs in with the subject.
import { createServer } from "node:http";
import Provider from "oidc-provider";

const [clientId, clientSecret, redirectUri] = process.argv.slice(2);
const people = new Map();
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{ client_id: clientId, client_secret: clientSecret, redirect_uris: [redirectUri] }],
    claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "groups"] },
    pkce: { required: () => true },
    cookies: { keys: ["only for tests"] },
    findAccount: (_ctx, sub) => ({ accountId: sub, claims: () => ({ sub, ...people.get(sub) }) }),
  });
  const answer = provider.callback();
  server.on("request", async (request, response) => {
    if (request.method !== "PUT") return answer(request, response);
    people.set(request.url.slice(1), JSON.parse(Buffer.concat(await request.toArray())));
    return response.end();
  });
  console.log(issuer);
});
